"""Sessions over real sockets (§6.2, §7.4, §7.5, R4 to R7, R39); faulty rows in the real model.

One scripted worker serves the first part of the module, one with the golden checkpoint the second.
"""

import struct
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from dsparkctl.contract.codes import ALL_SLOTS, NEED_DRAFT, NEW_GEN, EntryStatus, FrameStatus, Op
from dsparkctl.contract.messages import (
    StepReply,
    frame,
    hello_frame,
    parse_hello_reply,
    parse_step_reply,
    step_head,
)
from dsparkctl.contract.records import ReqEntry
from tests.e2e.running import Client, Worker, running_worker

ROW_BYTES, W, N = 384, 8, 5
GOOD_ROW = struct.pack(f"<{ROW_BYTES // 2}H", *(0x3F00 + i for i in range(ROW_BYTES // 2)))


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with running_worker("--drafter", "scripted") as worker:
        yield worker


SESSIONS = count(1001)


@pytest.fixture
def session() -> int:
    """A new session for every test."""
    return next(SESSIONS)


def ask_step(
    client: Client, session: int, seq: int, *entries: ReqEntry, rows: bytes | None = None
) -> tuple[int, StepReply | None]:
    head = step_head(
        seq=seq, session=session, step_id=seq, step_flags=0, row_bytes=ROW_BYTES, entries=entries
    )
    if rows is None:
        rows = GOOD_ROW * sum(entry.n_rows for entry in entries)
    header, body = client.ask(head + rows)
    return header.status, None if header.status else parse_step_reply(body)


def step(client: Client, session: int, seq: int, *entries: ReqEntry, **more: Any) -> StepReply:
    status, reply = ask_step(client, session, seq, *entries, **more)
    assert status == FrameStatus.OK
    assert reply is not None
    return reply


def rows_of(slot: int, first_pos: int, n_rows: int, flags: int = NEED_DRAFT) -> ReqEntry:
    return ReqEntry(slot, flags, 0, 0, 1, first_pos, n_rows, 3, first_pos + n_rows)


# --- HELLO ----------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Any, FrameStatus]] = {
    "proto_min": (2, FrameStatus.BAD_VERSION),
    "proto_max": (0, FrameStatus.BAD_VERSION),
    "num_spec": (4, FrameStatus.CONFIG_MISMATCH),
    "window": (7, FrameStatus.CONFIG_MISMATCH),
    "hidden": (65, FrameStatus.CONFIG_MISMATCH),
    "n_taps": (2, FrameStatus.CONFIG_MISMATCH),
    "tap_layer_ids": ((37, 38, 40, 0), FrameStatus.CONFIG_MISMATCH),
    "payload_kind": (2, FrameStatus.CONFIG_MISMATCH),
    "row_bytes": (128, FrameStatus.CONFIG_MISMATCH),
    "noise_token_id": (150, FrameStatus.CONFIG_MISMATCH),
    "vocab_size": (161, FrameStatus.CONFIG_MISMATCH),
    "max_model_len": (327_681, FrameStatus.CONFIG_MISMATCH),
    "max_slots": (5, FrameStatus.CONFIG_MISMATCH),
    "max_rows_per_step": (33, FrameStatus.CONFIG_MISMATCH),
    "sample_mode": (0, FrameStatus.CONFIG_MISMATCH),
    "tp_size": (9, FrameStatus.OK),
    "reserved": (0xFFFFFFFF, FrameStatus.OK),
    "drafter_identity": (b"\1" * 32, FrameStatus.IDENTITY_MISMATCH),
    "markov_identity": (b"\1" * 32, FrameStatus.IDENTITY_MISMATCH),
    "client_name": (b"\xff\0\n" * 16, FrameStatus.OK),
}


def test_every_field_of_hello_has_its_line_above(worker: Worker) -> None:
    assert set(WRONG) == set(worker.own._fields)


@pytest.mark.parametrize("field", WRONG)
def test_6_2_every_hello_field_wrong_in_turn(worker: Worker, session: int, field: str) -> None:
    value, expected = WRONG[field]
    with Client(worker.data) as client:
        changed: dict[str, Any] = {field: value}
        header, body = client.ask(hello_frame(1, session, worker.own._replace(**changed)))
        assert header.status == expected
        reply = parse_hello_reply(body)  # R8: whatever the status
        assert reply.drafter_identity == worker.own.drafter_identity
        good = rows_of(0, 0, 1)
        after = FrameStatus.NO_SESSION if expected else FrameStatus.OK
        assert ask_step(client, session, 2, good)[0] == after


@pytest.mark.parametrize("at", range(4))
def test_r7_all_four_tap_ids_count(worker: Worker, session: int, at: int) -> None:
    taps = list(worker.own.tap_layer_ids)
    taps[at] += 1
    with Client(worker.data) as client:
        hello = worker.own._replace(tap_layer_ids=tuple(taps))
        assert client.hello(hello, session=session).status == FrameStatus.CONFIG_MISMATCH


def test_r7_session_0_is_malformed(worker: Worker) -> None:
    with Client(worker.data) as client:
        assert client.hello(worker.own, session=0).status == FrameStatus.MALFORMED


@pytest.mark.parametrize("n_bytes", [0, 191, 193])
def test_a_hello_of_another_length_is_malformed(worker: Worker, n_bytes: int) -> None:
    with Client(worker.data) as client:
        header, body = client.ask(frame(Op.HELLO, 1, 1, bytes(n_bytes)))
        assert (header.status, len(body)) == (FrameStatus.MALFORMED, 128)


# --- connections ----------------------------------------------------------------------------------


def test_7_5_newest_wins(worker: Worker, session: int) -> None:
    with Client(worker.data) as old:
        old.hello(worker.own, session=session)
        with Client(worker.data) as new:
            assert new.ping().status == FrameStatus.OK
            assert old.is_closed()
            with Client(worker.data) as newest:
                assert newest.hello(worker.own, session=session).status == FrameStatus.OK
                assert new.is_closed()


def test_r4_a_step_on_a_new_connection_without_hello_has_no_session(
    worker: Worker, session: int
) -> None:
    with Client(worker.data) as client:
        client.hello(worker.own, session=session)
        step(client, session, 2, rows_of(0, 0, 3))
    with Client(worker.data) as client:
        assert ask_step(client, session, 3, rows_of(0, 3, 1))[0] == FrameStatus.NO_SESSION
        client.hello(worker.own, session=session, seq=4)
        reply = step(client, session, 5, rows_of(0, 3, 1))
        assert reply.statuses == [(EntryStatus.OK, 4, 1)]


def test_7_5_a_resumed_session_keeps_windows_and_refuses_old_seqs(
    worker: Worker, session: int
) -> None:
    with Client(worker.data) as client:
        client.hello(worker.own, session=session)
        before = step(client, session, 9, rows_of(0, 0, 8))
    with Client(worker.data) as client:
        client.hello(worker.own, session=session)
        assert ask_step(client, session, 9, rows_of(0, 8, 1))[0] == FrameStatus.STALE_SEQ
        again = step(client, session, 10, rows_of(0, 8, 0))
    assert again.draft_ids == before.draft_ids


def test_6_2_a_new_session_drops_every_window(worker: Worker, session: int) -> None:
    with Client(worker.data) as client:
        client.hello(worker.own, session=session)
        step(client, session, 2, rows_of(0, 0, 8))
        client.hello(worker.own, session=session + 500, seq=3)
        reply = step(client, session + 500, 1, rows_of(0, 8, 1))
        assert reply.statuses == [(EntryStatus.PARTIAL_WINDOW, 1, 1)]


# --- the admin listener beside a session ----------------------------------------------------------


def test_r37_admin_answers_hello_and_step_with_unsupported_op(worker: Worker, session: int) -> None:
    with Client(worker.data) as engine, Client(worker.admin) as admin:
        engine.hello(worker.own, session=session)
        step(engine, session, 2, rows_of(0, 0, 2))
        assert admin.hello(worker.own, session=7).status == FrameStatus.UNSUPPORTED_OP
        status, _ = ask_step(admin, session, 3, rows_of(0, 2, 1))
        assert status == FrameStatus.UNSUPPORTED_OP
        assert step(engine, session, 3, rows_of(0, 2, 1)).statuses[0].window_rows == 3


def test_r39_reset_through_admin_makes_the_engines_next_step_partial(
    worker: Worker, session: int
) -> None:
    with Client(worker.data) as engine, Client(worker.admin) as admin:
        engine.hello(worker.own, session=session)
        step(engine, session, 2, rows_of(0, 0, 8), rows_of(1, 0, 8))
        mask = frame(Op.RESET, 0, 0, (1).to_bytes(4, "little"))
        assert admin.ask(mask)[0].status == FrameStatus.OK
        reply = step(engine, session, 3, rows_of(0, 8, 1), rows_of(1, 8, 1))
        assert [s[:2] for s in reply.statuses] == [
            (EntryStatus.PARTIAL_WINDOW, 1),
            (EntryStatus.OK, 8),
        ]
        everything = frame(Op.RESET, 0, 0, ALL_SLOTS.to_bytes(4, "little"))
        assert admin.ask(everything)[0].status == FrameStatus.OK
        held = [slot["hi_pos"] for slot in admin.stats()["slots"]]
        assert held == [None] * 4


# --- NaN and infinity in the real model (R29) -----------------------------------------------------

BF16 = {"nan": 0x7FC0, "inf": 0x7F80, "-inf": 0xFF80, "signalling nan": 0x7F81}


@pytest.fixture(scope="module")
def model_worker() -> Iterator[Worker]:
    with running_worker() as worker:
        yield worker


def distinct_rows(n_rows: int, seed: int) -> bytes:
    values = [
        0x3C00 + (31 * seed + 7 * i + 13 * row) % 0x380 | (i * 0x8000 & 0x8000)
        for row in range(n_rows)
        for i in range(ROW_BYTES // 2)
    ]
    return struct.pack(f"<{len(values)}H", *values)


@pytest.mark.parametrize("name", BF16)
@pytest.mark.parametrize("place", [0, 100, ROW_BYTES // 2 - 1])
def test_r29_rows_that_are_not_finite_stay_with_their_entry(
    model_worker: Worker, session: int, name: str, place: int
) -> None:
    """The others of the STEP draft as without it; the slot is well once the row has left."""
    spoilt = bytearray(distinct_rows(3, 5))
    struct.pack_into("<H", spoilt, ROW_BYTES + 2 * place, BF16[name])
    first, third = distinct_rows(8, 1), distinct_rows(4, 2)
    entries = (rows_of(0, 0, 8), rows_of(1, 0, 3), rows_of(2, 0, 4))
    with Client(model_worker.data) as client:
        client.hello(model_worker.own, session=session)
        alone = step(client, session, 2, *entries, rows=first + distinct_rows(3, 5) + third)
        client.hello(model_worker.own, session=session + 500)
        session += 500
        reply = step(client, session, 2, *entries, rows=first + bytes(spoilt) + third)
        assert [s[:2] for s in reply.statuses] == [(0, 8), (EntryStatus.INTERNAL, 0), (0, 4)]
        assert reply.draft_ids[N : 2 * N] == (0,) * N
        assert reply.confidence[N : 2 * N] == (0.0,) * N
        for i in (0, 2):
            span = slice(i * N, (i + 1) * N)
            assert reply.draft_ids[span] == alone.draft_ids[span]
            assert reply.confidence[span] == pytest.approx(alone.confidence[span], abs=1e-6)

        # While the row is in the window the slot cannot draft, and says so.
        within = step(client, session, 3, rows_of(1, 3, 1))
        assert within.statuses[0].status == EntryStatus.INTERNAL
        # Eight rows later it has left: 0 × NaN in a masked ring would still be NaN.
        healed = step(client, session, 4, rows_of(1, 4, 8), rows=first)
        client.hello(model_worker.own, session=session + 500)
        clean = step(client, session + 500, 2, rows_of(1, 4, 8), rows=first)
        assert clean.statuses[0] == (EntryStatus.OK, 8, 1)
        assert healed.statuses[0] == (EntryStatus.OK, 8, 1)
        assert healed.draft_ids == clean.draft_ids
        assert healed.confidence == clean.confidence


def test_r29_a_resync_heals_a_slot_with_a_short_window_beside_spoilt_ring_places(
    model_worker: Worker, session: int
) -> None:
    spoilt = struct.pack(f"<{W * ROW_BYTES // 2}H", *[BF16["nan"]] * (W * ROW_BYTES // 2))
    with Client(model_worker.data) as client:
        client.hello(model_worker.own, session=session)
        step(client, session, 2, rows_of(0, 0, W), rows=spoilt)
        short = rows_of(0, 0, 2, NEED_DRAFT | NEW_GEN)
        healed = step(client, session, 3, short, rows=distinct_rows(2, 3))
        fresh = step(client, session, 4, short._replace(slot=1), rows=distinct_rows(2, 3))
        assert healed.statuses[0] == (EntryStatus.OK, 2, 1)
        assert healed.draft_ids == fresh.draft_ids
