"""The drafter without a model: equal windows, equal drafts; any changed byte, other drafts."""

import random
import struct

import pytest

from dspark_worker.drafter import Append, Draft, DraftRequest, Fault
from dspark_worker.scripted import ScriptedDrafter

W, N, VOCAB = 4, 3, 1 << 16


def drafter(row_bytes: int = 24) -> ScriptedDrafter:
    return ScriptedDrafter(num_spec=N, window=W, vocab_size=VOCAB, row_bytes=row_bytes, max_slots=2)


def rows(n_rows: int, row_bytes: int = 24, seed: int = 0) -> bytearray:
    """Finite bf16 values only."""
    dice = random.Random(seed)
    n = n_rows * row_bytes // 2
    return bytearray(struct.pack(f"<{n}H", *(dice.randrange(0x7F00) for _ in range(n))))


def put(to: ScriptedDrafter, slot: int, first_pos: int, data: bytearray, n_rows: int) -> object:
    return to.append([Append(slot, first_pos, n_rows, memoryview(data))])[0]


def ask(of: ScriptedDrafter, slot: int, lo: int, anchor: int, **changed: int) -> Draft | Fault:
    request = DraftRequest(slot, lo, anchor, 5, N)._replace(**changed)
    return of.draft([request], max_model_len=100, want_margin=True)[0]


def test_equal_windows_give_equal_drafts_whatever_their_history_and_slot() -> None:
    data = rows(6)
    once, stepwise = drafter(), drafter()
    put(once, 0, 2, data[2 * 24 :], 4)
    for pos in range(6):
        put(stepwise, 1, pos, rows(1, seed=9), 1)
        put(stepwise, 1, pos, data[pos * 24 : (pos + 1) * 24], 1)
    assert ask(once, 0, 2, 6) == ask(stepwise, 1, 2, 6)


@pytest.mark.parametrize("row_bytes", [2, 24, 512, 514, 1024, 30720])
def test_any_changed_byte_of_any_row_changes_the_draft(row_bytes: int) -> None:
    dice = random.Random(1)
    data = rows(W, row_bytes)
    one = drafter(row_bytes)
    put(one, 0, 0, data, W)
    before = ask(one, 0, 0, W)
    for at in {0, len(data) - 1, *(dice.randrange(len(data)) for _ in range(60))}:
        changed = bytearray(data)
        changed[at] ^= 1
        put(one, 0, 0, changed, W)
        assert ask(one, 0, 0, W) != before, at


def test_anchor_token_and_positions_matter_too() -> None:
    one = drafter()
    put(one, 0, 0, rows(W), W)
    drafts = [
        ask(one, 0, 0, 4),
        ask(one, 0, 0, 4, anchor_token=6),
        ask(one, 0, 1, 4),
        ask(one, 0, 0, 3),
    ]
    assert len({str(draft) for draft in drafts}) == 4


def test_6_3_positions_behind_n_out_are_zeros_and_those_before_it_do_not_change() -> None:
    one = drafter()
    put(one, 0, 0, rows(W), W)
    whole = ask(one, 0, 0, 4)
    assert isinstance(whole, Draft)
    for n_out in range(1, N + 1):
        part = ask(one, 0, 0, 4, n_out=n_out)
        assert isinstance(part, Draft)
        for short, full in zip(part, whole, strict=True):
            assert [*short] == [*full[:n_out], *[0] * (N - n_out)]


def test_6_3_every_value_is_one_that_rank_0_accepts() -> None:
    one = ScriptedDrafter(num_spec=N, window=W, vocab_size=7, row_bytes=24, max_slots=2)
    for seed in range(200):
        put(one, 0, 0, rows(W, seed=seed), W)
        draft = ask(one, 0, 0, W)
        assert isinstance(draft, Draft)
        assert all(0 <= token < 7 for token in draft.ids)
        assert all(0.0 <= value <= 1.0 for value in draft.confidence)
        assert all(0.0 <= value < 100.0 for value in draft.margin)


@pytest.mark.parametrize("bits", [0x7FC0, 0x7F80, 0xFF80, 0xFFFF])
def test_r29_a_row_that_is_not_finite_spoils_the_window_while_it_is_held(bits: int) -> None:
    one = drafter()
    data = rows(2)
    struct.pack_into("<H", data, 24 + 22, bits)
    assert isinstance(put(one, 0, 0, data, 2), Fault)
    assert put(one, 1, 0, rows(2), 2) is None
    assert isinstance(ask(one, 0, 0, 2), Fault)
    assert isinstance(ask(one, 1, 0, 2), Draft)
    assert isinstance(ask(one, 0, 0, 1), Draft)  # rolled back below it
    put(one, 0, 2, rows(W), W)
    assert isinstance(ask(one, 0, 2, 6), Draft)


def test_r17_an_empty_window_drafts_from_the_block_alone() -> None:
    assert isinstance(ask(drafter(), 0, 0, 0), Draft)
