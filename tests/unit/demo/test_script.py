"""The demo's story: what a Spark would send, and every kind of it (§7.1, §7.2, §7.4)."""

import struct
from collections import Counter

import pytest

from dsparkctl.contract.codes import NEED_DRAFT, NEW_GEN, RESYNC, EntryStatus
from dsparkctl.contract.records import Hello
from dsparkctl.contract.serial import following
from dsparkctl.demo.script import Kind, Round, rounds
from dsparkctl.demo.terms import EMBEDDED, terms_of

HELLO = terms_of(EMBEDDED).hello
SHORT = HELLO._replace(window=2, max_model_len=9, max_slots=1)
SEEDS = range(8)


def told(seed: int, hello: Hello = HELLO, n_rounds: int = 100) -> list[Round]:
    return list(rounds(seed, n_rounds, hello))


def test_a_seed_tells_the_same_story_byte_by_byte_and_another_seed_another_one() -> None:
    assert told(3) == told(3)
    assert told(3) != told(4)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "hello", [HELLO, SHORT, HELLO._replace(num_spec=1), HELLO._replace(max_model_len=1)]
)
def test_every_entry_fares_well_as_bounded_replay_promises_c24(seed: int, hello: Hello) -> None:
    for one in told(seed, hello):
        assert [outcome.status for outcome in one.expected] == [EntryStatus.OK] * len(one.entries)
        for entry in one.entries:
            assert 0 < entry.n_rows <= hello.window
            assert entry.first_pos >= 0
            assert entry.anchor_pos == entry.first_pos + entry.n_rows <= hello.max_model_len
        assert len({entry.slot for entry in one.entries}) == len(one.entries) > 0
        assert len(one.rows) == sum(entry.n_rows for entry in one.entries) * hello.row_bytes


@pytest.mark.parametrize("seed", SEEDS)
def test_a_demo_of_the_default_length_holds_every_kind_of_entry(seed: int) -> None:
    story = told(seed)
    kinds = Counter(kind for one in story for kind in one.kinds)
    assert set(kinds) == set(Kind)
    append_only = [e for one in story for e in one.entries if not e.req_flags & NEED_DRAFT]
    depths = {
        e.n_rows
        for one in story
        for e, k in zip(one.entries, one.kinds, strict=True)
        if k is Kind.DECODE
    }
    assert append_only
    assert len(depths) > 3
    assert {entry.n_out for one in story for entry in one.entries} == {0, HELLO.num_spec - 1}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_new_owner_has_the_next_generation_and_nobody_else_changes_it_section_7_1(
    seed: int,
) -> None:
    known: dict[int, int] = {}
    for one in told(seed):
        for entry, kind in zip(one.entries, one.kinds, strict=True):
            before = known.get(entry.slot)
            if kind is not Kind.START:
                assert entry.generation == before
            elif before is not None:
                assert entry.generation == following(before)
                assert entry.req_flags & NEW_GEN
            known[entry.slot] = entry.generation


@pytest.mark.parametrize("seed", SEEDS)
def test_the_reconnect_comes_once_and_every_live_slot_then_resyncs_its_whole_window(
    seed: int,
) -> None:
    story = told(seed)
    at = [i for i, one in enumerate(story) if one.reconnects]
    assert at == [50]
    owned = {entry.slot for one in story[:50] for entry in one.entries}
    for slot in owned:
        entry, kind = next(
            (e, k)
            for one in story[50:]
            for e, k in zip(one.entries, one.kinds, strict=True)
            if e.slot == slot
        )
        assert entry.req_flags & NEW_GEN
        if kind is not Kind.START:  # a new owner has nothing to send again (C7)
            assert kind is Kind.RESYNC
            assert entry.req_flags & RESYNC
            assert entry.n_rows == min(HELLO.window, entry.anchor_pos)
    n_resyncs = sum(kind is Kind.RESYNC for one in story for kind in one.kinds)
    assert 0 < n_resyncs <= len(owned)


def test_a_rollback_comes_back_lower_and_replays_the_whole_window() -> None:
    top: dict[int, int] = {}
    n_rollbacks = 0
    for one in told(1):
        for entry, kind in zip(one.entries, one.kinds, strict=True):
            if kind is Kind.ROLLBACK:
                n_rollbacks += 1
                assert entry.anchor_pos < top[entry.slot]
                assert entry.n_rows == min(HELLO.window, entry.anchor_pos)
            top[entry.slot] = entry.anchor_pos
    assert n_rollbacks


def test_a_resync_of_a_decode_sends_the_very_rows_that_were_sent_before_section_7_3() -> None:
    n_compared = sum(_n_rows_sent_again(told(seed)) for seed in SEEDS)
    assert n_compared > HELLO.window


def _n_rows_sent_again(story: list[Round]) -> int:
    n_compared = 0
    copy: dict[tuple[int, int], bytes] = {}
    top = dict.fromkeys(range(HELLO.max_slots), 0)
    for one in story:
        at = 0
        for entry, kind in zip(one.entries, one.kinds, strict=True):
            for pos in range(entry.first_pos, entry.anchor_pos):
                row = one.rows[at : at + HELLO.row_bytes]
                at += HELLO.row_bytes
                if kind is Kind.RESYNC and entry.k_window and pos < top[entry.slot]:
                    assert row == copy[entry.slot, pos]
                    n_compared += 1
                copy[entry.slot, pos] = row
            top[entry.slot] = entry.anchor_pos
    return n_compared


def test_every_value_of_a_row_is_finite_and_small() -> None:
    (one,) = told(5, n_rounds=1)
    values = [
        struct.unpack("<f", b"\0\0" + one.rows[i : i + 2])[0] for i in range(0, len(one.rows), 2)
    ]
    assert values
    assert all(2**-8 < abs(value) < 4 for value in values)
    assert min(values) < 0 < max(values)
