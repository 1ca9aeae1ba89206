"""A hostile worker over real TCP: every refused value, status and fault of §5, §6.3 and §9 in turn.

Each row of the table is one thing that a worker may do to a STEP, or to a HELLO, of the real client
(`WorkerLink` on `dial`, `Rounds`). Whatever it is: no exception, the deadline is kept, the outcome
is counted under one name, the engine gets zeros unless the reply was good, the connection is kept
or dropped as §6.3 and §9.1 say, and the next good round gives the worker every row it must hold.
"""

import struct
import time
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import pytest

from dsparkctl.client.fallback import Outcome
from dsparkctl.client.rounds import Answer
from dsparkctl.contract.codes import (
    CAN_MAINX_BF16,
    HAS_MARGIN,
    NEED_DRAFT,
    NEW_GEN,
    RESYNC,
    EntryStatus,
    FrameStatus,
    Op,
)
from dsparkctl.contract.framing import HEADER_BYTES, MAX_REPLY_BYTES
from dsparkctl.contract.layout import pack
from dsparkctl.contract.messages import StepReply, frame, parse_header
from dsparkctl.contract.records import ReplyHeader, ReqStatus
from tests.e2e.hostile import (
    PATIENT_S,
    TIMEOUT_S,
    Deed,
    HostileWorker,
    answer,
    byte_by_byte,
    dripping,
    field,
    framed,
    half,
    half_and_slam,
    hang_up,
    hostile_worker,
    in_two_parts,
    late,
    nothing,
    raw,
    reply_of,
    slam,
    spark,
)
from tests.unit.client.fakes import (
    HELLO_REPLY,
    VOCAB,
    Ask,
    Fault,
    N,
    Spark,
    W,
    edited,
    entry_status,
    fallbacks,
)

RESYNCED = NEW_GEN | NEED_DRAFT | RESYNC
NAN, INF = float("nan"), float("inf")
PROMPT_S = 2.0
"""What a round may take that waits for nothing: a busy machine, and far less than PATIENT_S."""


class Case(NamedTuple):
    """What a worker does to one STEP, and what must come of it."""

    name: str
    deed: Deed
    outcome: Outcome
    n_connections: int
    """When all is good again; 0: never again, disabled for good."""
    resyncs_all: bool
    """Or only the slots of that STEP (C16)."""
    says: str = ""
    """What the reason names: refused, and for this."""


def kept(name: str, deed: Deed, *, resyncs_all: bool = False) -> Case:
    return Case(name, deed, Outcome.FRAME_ERROR, 1, resyncs_all)


def dropped(name: str, deed: Deed, outcome: Outcome) -> Case:
    return Case(name, deed, outcome, 2, True)


def refused(name: str, fault: Fault, says: str = "") -> Case:
    return dropped(name, reply_of(fault), Outcome.BAD_REPLY)._replace(says=says)


def fatal(name: str, deed: Deed) -> Case:
    return Case(name, deed, Outcome.FRAME_ERROR, 0, True)


# --- the STEP that is answered badly: a drafts, b appends, c drafts; n_out is 2 of 3 --------------

FIRST = (Ask("a", 0, 0, 6), Ask("b", 1, 0, 11), Ask("c", 2, 0, 9), Ask("d", 3, 0, 10))
HIT = (Ask("a", 0, 6, 2), Ask("b", 1, 11, 1, needs_draft=False), Ask("c", 2, 9, 1))
NEXT = (Ask("a", 0, 8, 1), Ask("b", 1, 12, 1), Ask("c", 2, 10, 1), Ask("d", 3, 10, 1))
CONSUMED = (0, 1, 6, 7)
UNUSED = (2, 3, 4, 5, 8)


def at(name: str, position: int, value: float) -> Fault:
    """One value of one array."""

    def change(reply: StepReply) -> StepReply:
        values = [*getattr(reply, name)]
        values[position] = value
        return StepReply(**{**reply._asdict(), name: tuple(values)})

    return edited(change)


def both(first: Fault, second: Fault) -> Fault:
    return lambda reply: second(first(reply))


def of_status(i: int, **fields: int) -> Fault:
    """Fields of entry i's ReqStatus, as they are or added to what stands there."""

    def change(reply: StepReply) -> StepReply:
        statuses = [*reply.statuses]
        statuses[i] = ReqStatus(**{**statuses[i]._asdict(), **fields})
        return reply._replace(statuses=statuses)

    return edited(change)


def generation(i: int, change: Callable[[int], int]) -> Fault:
    def spoil(reply: StepReply) -> StepReply:
        statuses = [*reply.statuses]
        old = statuses[i].generation
        statuses[i] = statuses[i]._replace(generation=change(old) & 0xFFFFFFFF)
        return reply._replace(statuses=statuses)

    return edited(spoil)


def of_head(**changes: Callable[[int], int]) -> Fault:
    """Fields of the ReplyHeader, the rest of the body as it was."""

    def spoil(reply: bytes) -> bytes:
        header = parse_header(reply)
        names = ReplyHeader._fields[:6]
        values = dict(zip(names, struct.unpack_from("<QHHIII", reply, HEADER_BYTES), strict=True))
        for name, change in changes.items():
            values[name] = change(values[name])
        body = struct.pack("<QHHIII", *values.values()) + reply[HEADER_BYTES + 24 :]
        return frame(header.op, header.seq, header.session, body)

    return spoil


def another_shape(n_req: int, num_spec: int) -> Fault:
    """A reply that agrees with itself, for another number of requests or drafts."""

    def change(reply: StepReply) -> StepReply:
        n = n_req * num_spec
        return StepReply(
            reply.head._replace(n_req=n_req, num_spec=num_spec),
            [*reply.statuses, *reply.statuses][:n_req],
            (1,) * n,
            (0.5,) * n,
            (0.5,) * n,
        )

    return edited(change)


def without_margins(reply: StepReply) -> StepReply:
    return reply._replace(head=reply.head._replace(reply_flags=0), margin=None)


def cut(n_bytes: int) -> Fault:
    """The body without its last bytes, or with more; the header tells the truth about it."""

    def spoil(reply: bytes) -> bytes:
        header = parse_header(reply)
        body = reply[HEADER_BYTES:] + bytes(max(0, -n_bytes))
        body = body[: len(body) - max(0, n_bytes)]
        return frame(header.op, header.seq, header.session, body)

    return spoil


def with_status(code: int, *, keeps_body: bool) -> Deed:
    """A frame status on an empty body, or on one full of drafts."""

    def spoil(reply: bytes) -> bytes:
        header = parse_header(reply)
        body = reply[HEADER_BYTES:] if keeps_body else b""
        return frame(header.op, header.seq, header.session, body, code)

    return reply_of(spoil)


def says(name: str, position: int) -> str:
    i, j = divmod(position, N)
    return f"entry {i}, position {j}: {name.replace('draft_ids', 'draft id')} "


def refused_values() -> Iterator[Case]:
    """§6.3, v1.4: every check, at every position."""
    ids = (-1, VOCAB, VOCAB + 1, 0x7FFFFFFF, -0x80000000)
    floats = (-1e-6, NAN, INF, -INF)
    wrong = {"draft_ids": ids, "confidence": (*floats, 1.0001), "margin": floats}
    for name, values in wrong.items():
        for position, value in product(CONSUMED, values):
            case = refused(f"{name}[{position}] is {value}", at(name, position, value))
            yield case._replace(says=says(name, position))
    zeros = {"draft_ids": (1, -1), "confidence": (0.5, 1e-30, NAN), "margin": (0.5, -1e-30, NAN)}
    for name, values in zeros.items():
        for position, value in product(UNUSED, values):
            case = refused(f"unused {name}[{position}] is {value}", at(name, position, value))
            yield case._replace(says=says(name, position))
    for code in (EntryStatus.STALE_GENERATION, EntryStatus.BAD_ENTRY, EntryStatus.INTERNAL):
        for position in range(6, 9):
            name = f"{code.name} with a draft at {position}"
            fault = both(entry_status(code, 2), at("draft_ids", position, 7))
            yield refused(name, fault, says("draft_ids", position))


def refused_statuses() -> Iterator[Case]:
    """§6.3, v1.4: codes, window_rows and echoes of each entry."""
    for i in range(3):
        for code in (5, 6, 0x7FFF, 0xFFFF):
            yield refused(f"entry {i}: status {code}", of_status(i, status=code), "status")
        for rows in (W + 1, 0xFFFF):
            yield refused(f"entry {i}: {rows} rows", of_status(i, window_rows=rows), "rows")
        changes: dict[str, Callable[[int], int]] = {
            "one more": lambda x: x + 1,
            "one less": lambda x: x - 1,
            "half a circle off": lambda x: x ^ 0x80000000,
        }
        for name, change in changes.items():
            yield refused(f"entry {i}: generation {name}", generation(i, change), "generation")
    for i in (0, 2):
        for rows in (0, W - 1):
            yield refused(f"entry {i}: OK with {rows} rows", of_status(i, window_rows=rows), "rows")
        partial = EntryStatus.PARTIAL_WINDOW
        for rows in (W, W + 1, 0xFFFF):
            fault = of_status(i, status=partial, window_rows=rows)
            yield refused(f"entry {i}: PARTIAL_WINDOW with {rows} rows", fault, "rows")
    yield refused(
        "BAD_ENTRY with too many rows", entry_status(EntryStatus.BAD_ENTRY, 2, window_rows=9)
    )


def refused_shapes() -> Iterator[Case]:
    """§6.3: shape and echoes."""
    for name in ("step_id", "n_req", "num_spec"):
        yield refused(f"{name} one more", of_head(**{name: lambda x: x + 1}))
        yield refused(f"{name} one less", of_head(**{name: lambda x: x - 1}))
        yield refused(f"{name} 0", of_head(**{name: lambda _: 0}))
    yield refused("n_req of 65535", of_head(n_req=lambda _: 0xFFFF))
    yield refused(
        "65535 drafts for 65535 requests",
        of_head(n_req=lambda _: 0xFFFF, num_spec=lambda _: 0xFFFF),
    )
    yield refused("HAS_MARGIN without margins", of_head(reply_flags=lambda x: x ^ HAS_MARGIN))
    for n_req, num_spec in ((2, N), (4, N), (3, N - 1), (3, N + 1), (0, N), (3, 0), (0, 0)):
        fault = another_shape(n_req, num_spec)
        yield refused(f"a whole reply for {n_req} requests of {num_spec} drafts", fault)
    for n_bytes in (1, 4, 36, 1000, -1, -4, -36):
        yield refused(f"a body {n_bytes} bytes short", cut(n_bytes))


def frame_statuses() -> Iterator[Case]:
    """§9.1, C4, C21: every code, and codes that are none."""
    for code, keeps_body in product(FrameStatus, (False, True)):
        name = f"{code.name} with {'drafts' if keeps_body else 'an empty body'}"
        deed = with_status(code, keeps_body=keeps_body)
        if code in (FrameStatus.NO_SESSION, FrameStatus.STALE_SEQ):
            yield kept(name, deed, resyncs_all=True)
        elif code in (FrameStatus.MALFORMED, FrameStatus.CAPACITY, FrameStatus.INTERNAL):
            yield kept(name, deed)
        elif code is not FrameStatus.OK:
            yield fatal(name, deed)
        elif not keeps_body:
            yield dropped(name, deed, Outcome.BAD_REPLY)
    for number, keeps_body in product((10, 77, -1, 0x7FFFFFFF, -0x80000000), (False, True)):
        name = f"status {number} with {'drafts' if keeps_body else 'an empty body'}"
        yield dropped(name, with_status(number, keeps_body=keeps_body), Outcome.BAD_REPLY)


def echoes() -> Iterator[Case]:
    """§6.1: what stands in the AppHeader."""
    fields: list[tuple[str, int, str, Callable[[int], int]]] = [
        ("magic", 0, "I", lambda x: x ^ 1),
        ("magic 0", 0, "I", lambda _: 0),
        ("version 0", 4, "H", lambda _: 0),
        ("version 2", 4, "H", lambda _: 2),
        *[(f"op {op}", 6, "H", lambda _, op=op: op) for op in (0, 1, 3, 4, 5, 6, 0xFFFF)],
        ("the seq before", 8, "Q", lambda x: x - 1),
        ("the next seq", 8, "Q", lambda x: x + 1),
        ("seq 0", 8, "Q", lambda _: 0),
        ("the longest seq", 8, "Q", lambda _: (1 << 64) - 1),
        ("another session", 16, "I", lambda x: x ^ 1),
        ("session 0", 16, "I", lambda _: 0),
        ("body_len one short", 20, "I", lambda x: x - 1),
        ("body_len one long", 20, "I", lambda x: x + 1),
        ("body_len 0", 20, "I", lambda _: 0),
        ("body_len 2**32 - 1", 20, "I", lambda _: 0xFFFFFFFF),
    ]
    for name, offset, code, change in fields:
        yield dropped(name, field(offset, code, change), Outcome.BAD_REPLY)
    # A version that is not ours may be told in its own header: BAD_VERSION is fatal then (§9.1).
    yield fatal("BAD_VERSION of version 2", reply_of(_bad_version_of_2))


def _bad_version_of_2(reply: bytes) -> bytes:
    header = parse_header(reply)
    return pack(header._replace(version=2, body_len=0, status=FrameStatus.BAD_VERSION))


def framing() -> Iterator[Case]:
    """§5: how bytes lie on the stream."""
    lost = [
        ("a prefix of 0", lambda data: bytes(4)),
        ("a prefix of 31", lambda data: struct.pack("<I", 31) + data[4:]),
        ("a prefix beyond 64 KiB", lambda data: struct.pack("<I", MAX_REPLY_BYTES + 1) + data[4:]),
        ("a prefix of 4 GiB", lambda data: b"\xff" * 4 + data[4:]),
        ("no prefix", lambda data: data[4:]),
        ("another protocol", lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        ("noise", lambda _: bytes(range(255, 0, -1))),
    ]
    for name, spoil in lost:
        yield dropped(name, raw(spoil), Outcome.TRANSPORT)
    yield dropped("a header in zeros", raw(lambda _: framed(bytes(32))), Outcome.BAD_REPLY)
    yield dropped("a header in ones", raw(lambda _: framed(b"\xff" * 64)), Outcome.BAD_REPLY)
    yield dropped("a prefix longer than what follows", raw(_one_more), Outcome.TIMEOUT)
    yield dropped("half a prefix", raw(lambda data: data[:2]), Outcome.TIMEOUT)
    yield dropped("all but the last byte", raw(lambda data: data[:-1]), Outcome.TIMEOUT)
    yield dropped("no answer", nothing, Outcome.TIMEOUT)
    yield dropped("an answer too late", late, Outcome.TIMEOUT)
    yield dropped("an answer in drops", dripping, Outcome.TIMEOUT)
    yield dropped("the end instead of an answer", hang_up, Outcome.TRANSPORT)
    yield dropped("the end in the middle of an answer", half, Outcome.TRANSPORT)
    yield dropped("a reset instead of an answer", slam, Outcome.TRANSPORT)
    yield dropped("a reset in the middle of an answer", half_and_slam, Outcome.TRANSPORT)


def _one_more(data: bytes) -> bytes:
    return struct.pack("<I", len(data) - 4 + 1) + data[4:]


CASES = [
    *refused_values(),
    *refused_statuses(),
    *refused_shapes(),
    *frame_statuses(),
    *echoes(),
    *framing(),
]


def running(worker: HostileWorker, timeout_s: float = PATIENT_S) -> Spark:
    """Four slots, all clean after one good round."""
    rank0 = spark(worker, timeout_s)
    assert rank0.run(*FIRST).outcome is Outcome.DRAFTED
    assert rank0.dirty() == set()
    return rank0


def hurried(rank0: Spark, *asks: Ask) -> Answer:
    """A round that takes no longer than its deadline, where that is short, and a busy machine."""
    began_at = time.monotonic()
    answer = rank0.run(*asks)
    assert time.monotonic() - began_at < PROMPT_S
    return answer


def assert_zeros(answer: Answer, n_requests: int) -> None:
    """§10: nothing of the reply, nothing of the round before."""
    assert [*answer.draft_ids] == [0] * n_requests * N
    assert [*answer.confidence] == [0.0] * n_requests * N
    assert answer.margin is None
    assert answer.reason
    assert "\n" not in answer.reason


def flags(worker: HostileWorker) -> dict[int, int]:
    """req_flags by slot in the newest STEP."""
    return {entry.slot: entry.req_flags for entry in worker.good.steps[-1].entries}


def assert_in_step(worker: HostileWorker, rank0: Spark) -> None:
    """The worker holds the very rows of rank 0's ring."""
    for slot in range(4):
        assert worker.good.held(slot) == rank0.owned(slot)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_worker_that_answers_a_step_badly_costs_one_round(case: Case) -> None:
    """§6.3, §7.4, §9.1, §10; C2 to C4, C15, C16, C21, C26."""
    with hostile_worker() as worker:
        rank0 = running(worker, TIMEOUT_S if case.outcome is Outcome.TIMEOUT else PATIENT_S)
        worker.will(case.deed)
        answer = hurried(rank0, *HIT)
        assert answer.outcome is case.outcome
        assert_zeros(answer, len(HIT))
        assert case.says in answer.reason
        assert fallbacks(rank0.counts) == {case.outcome.counter: 1}
        assert bool(rank0.counts["last_bad_reply"]) is (case.outcome is Outcome.BAD_REPLY)
        assert len(worker.good.steps) == 2
        assert rank0.rounds.breaker.n_failed == 1

        rank0.clock.wait(1.0)
        if not case.n_connections:
            for _ in range(3):
                answer = hurried(rank0, *NEXT)
                assert answer.outcome is Outcome.DISABLED
                assert_zeros(answer, len(NEXT))
                rank0.clock.wait(60.0)
            assert (worker.n_accepted, len(worker.good.steps)) == (1, 2)
            return
        assert hurried(rank0, *NEXT).outcome is Outcome.DRAFTED
        assert rank0.link.n_connections == worker.n_accepted == case.n_connections
        dirty = RESYNCED if case.resyncs_all else NEED_DRAFT
        assert flags(worker) == {0: RESYNCED, 1: RESYNCED, 2: RESYNCED, 3: dirty}
        assert {header.session for header in worker.good.hellos} == {rank0.link.session}
        assert_in_step(worker, rank0)
        assert rank0.dirty() == set()


def test_the_tables_rows_are_all_different_and_none_has_gone_missing() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert len(names) > 230
    assert {case.outcome for case in CASES} == {
        Outcome.TIMEOUT,
        Outcome.TRANSPORT,
        Outcome.BAD_REPLY,
        Outcome.FRAME_ERROR,
    }


# --- replies that are odd and good ----------------------------------------------------------------

ODD: dict[str, Deed] = {
    "byte by byte": byte_by_byte,
    "in two parts": in_two_parts,
    "flags nobody knows": field(28, "I", lambda _: 0xFFFFFFFF),
    "reply flags nobody knows": reply_of(of_head(reply_flags=lambda x: x | 0xFFFFFFFE)),
    "times of an hour": reply_of(of_head(worker_us=lambda _: 0xFFFFFFFF)),
    "minus zero where none is consumed": reply_of(at("confidence", 2, -0.0)),
    "the bounds of confidence": reply_of(both(at("confidence", 0, 0.0), at("confidence", 1, 1.0))),
    "the bounds of the vocabulary": reply_of(
        both(at("draft_ids", 0, 0), at("draft_ids", 1, VOCAB - 1))
    ),
    "no margins though asked for": reply_of(edited(without_margins)),
}


@pytest.mark.parametrize("name", ODD)
def test_a_reply_that_is_odd_and_good_is_used(name: str) -> None:
    """§6.1, R27, C20."""
    with hostile_worker() as worker:
        rank0 = running(worker)
        worker.will(ODD[name])
        assert hurried(rank0, *HIT).outcome is Outcome.DRAFTED
        assert hurried(rank0, *NEXT).outcome is Outcome.DRAFTED
        assert not fallbacks(rank0.counts)
        assert worker.n_accepted == 1
        assert flags(worker) == dict.fromkeys(range(4), NEED_DRAFT)
        assert_in_step(worker, rank0)


# --- entry statuses -------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [EntryStatus.BAD_ENTRY, EntryStatus.INTERNAL])
@pytest.mark.parametrize("everyone", [False, True])
def test_an_entry_with_an_error_costs_its_own_drafts_alone(
    code: EntryStatus, everyone: bool
) -> None:
    """§9.2, §10: a failed attempt when nobody got drafts, a success otherwise."""
    with hostile_worker() as worker:
        rank0 = running(worker)
        worker.will(reply_of(entry_status(code, *((0, 2) if everyone else (2,)))))
        answer = hurried(rank0, *HIT)
        assert answer.outcome is (Outcome.ENTRY_ERRORS if everyone else Outcome.DRAFTED)
        assert any(answer.draft_ids[:N]) is not everyone
        assert not any(answer.draft_ids[N:])
        assert rank0.rounds.breaker.n_failed == int(everyone)
        assert hurried(rank0, *NEXT).outcome is Outcome.DRAFTED
        assert worker.n_accepted == 1
        expected = {0: RESYNCED if everyone else NEED_DRAFT, 2: RESYNCED}
        assert flags(worker) == {1: NEED_DRAFT, 3: NEED_DRAFT, **expected}
        assert_in_step(worker, rank0)


def test_a_short_window_is_used_and_resynced() -> None:
    """§9.2: PARTIAL_WINDOW."""
    with hostile_worker() as worker:
        rank0 = running(worker)
        worker.will(reply_of(of_status(0, status=EntryStatus.PARTIAL_WINDOW, window_rows=3)))
        answer = hurried(rank0, *HIT)
        assert answer.outcome is Outcome.DRAFTED
        assert [*answer.draft_ids[:N]] == [9, 10, 0]
        hurried(rank0, *NEXT)
        assert flags(worker) == {0: RESYNCED, 1: NEED_DRAFT, 2: NEED_DRAFT, 3: NEED_DRAFT}
        assert_in_step(worker, rank0)


def test_a_stale_generation_starts_a_new_session_on_the_same_connection() -> None:
    """§9.2, v1.5; C3, C8, C23."""
    with hostile_worker() as worker:
        rank0 = running(worker)
        before = [page.generation for page in rank0.rounds.ledger.pages]
        worker.will(reply_of(entry_status(EntryStatus.STALE_GENERATION, 0)))
        assert not any(hurried(rank0, *HIT).draft_ids[:N])
        assert hurried(rank0, *NEXT).outcome is Outcome.DRAFTED
        first, second = worker.good.hellos
        assert first.session != second.session
        assert (second.seq, worker.good.steps[-1].header.seq) == (1, 2)
        assert flags(worker) == dict.fromkeys(range(4), RESYNCED)
        assert [page.generation for page in rank0.rounds.ledger.pages] == before
        assert worker.n_accepted == 1
        assert_in_step(worker, rank0)


# --- too much of an answer ------------------------------------------------------------------------


def twice(sock: Any, reply: bytes) -> None:
    sock.sendall(framed(reply) * 2)


def twice_with_a_pause(sock: Any, reply: bytes) -> None:
    answer(sock, reply)
    time.sleep(0.05)
    answer(sock, reply)


@pytest.mark.parametrize(
    "deed",
    [
        twice,
        twice_with_a_pause,
        raw(lambda data: data + b"x"),
        raw(lambda data: data + bytes(1 << 17)),
    ],
)
def test_c22_what_stands_behind_a_good_reply_is_never_taken_for_one(deed: Deed) -> None:
    """C22: the reply counts; the connection is dropped before the next STEP."""
    with hostile_worker() as worker:
        rank0 = running(worker)
        worker.will(deed)
        assert hurried(rank0, *HIT).outcome is Outcome.DRAFTED
        worker.wait_for(3)  # HELLO and two STEPs
        answer = hurried(rank0, *NEXT)
        assert answer.outcome is Outcome.NO_CONNECTION
        assert_zeros(answer, len(NEXT))
        assert rank0.rounds.breaker.n_failed == 0
        rank0.clock.wait(1.0)
        again = [ask._replace(first_pos=ask.first_pos + 1) for ask in NEXT]
        assert hurried(rank0, *again).outcome is Outcome.DRAFTED
        assert flags(worker) == dict.fromkeys(range(4), RESYNCED)
        assert worker.n_accepted == 2
        assert_in_step(worker, rank0)


def test_c22_a_reply_before_its_request_is_none() -> None:
    """C22: forged to fit the STEP that will come; it came with the reply to HELLO."""

    def eager(sock: Any, reply: bytes) -> None:
        header = parse_header(reply)
        forged = frame(Op.STEP, header.seq + 1, header.session, bytes(32))
        sock.sendall(framed(reply) + framed(forged))

    with hostile_worker() as worker:
        worker.will(eager, op=Op.HELLO)
        rank0 = spark(worker)
        assert_zeros(hurried(rank0, *FIRST), len(FIRST))
        assert worker.good.steps == []
        rank0.clock.wait(1.0)
        assert hurried(rank0, *FIRST).outcome is Outcome.DRAFTED
        assert worker.n_accepted == 2


# --- HELLO ----------------------------------------------------------------------------------------


def hello_body(**changes: Any) -> Deed:
    """An OK with another value in its body."""

    def spoil(reply: bytes) -> bytes:
        header = parse_header(reply)
        return frame(header.op, header.seq, header.session, pack(HELLO_REPLY._replace(**changes)))

    return reply_of(spoil)


def hello_status(code: int, body: bytes) -> Deed:
    def spoil(reply: bytes) -> bytes:
        header = parse_header(reply)
        return frame(header.op, header.seq, header.session, body, code)

    return reply_of(spoil)


FATAL = (
    FrameStatus.BAD_VERSION,
    FrameStatus.IDENTITY_MISMATCH,
    FrameStatus.CONFIG_MISMATCH,
    FrameStatus.UNSUPPORTED_OP,
)
BODIES = {"a good body": pack(HELLO_REPLY), "no body": b"", "a bad body": b"\xff" * 127}

DISABLING: dict[str, Deed] = {
    **{
        f"{code.name} with {name}": hello_status(code, body)
        for code in FATAL
        for name, body in BODIES.items()
    },
    "BAD_VERSION of version 2": reply_of(_bad_version_of_2),
    "another drafter": hello_body(drafter_identity=b"x" * 32),
    "another Markov cache": hello_body(markov_identity=bytes(32)),
    "a longer window": hello_body(window=W + 1),
    "a shorter window": hello_body(window=W - 1),
    "fewer drafts": hello_body(num_spec=N - 1),
    "more drafts": hello_body(num_spec=N + 1),
    "proto 0": hello_body(proto=0),
    "proto 2": hello_body(proto=2),
    "no capability": hello_body(capabilities=0),
    "the other payload alone": hello_body(capabilities=CAN_MAINX_BF16),
    "fewer slots": hello_body(max_slots=3),
    "fewer rows": hello_body(max_rows_per_step=4 * W - 1),
}


@pytest.mark.parametrize("name", DISABLING)
def test_a_hello_that_is_refused_for_good_disables_and_never_sends_a_step(name: str) -> None:
    """§6.2, §9.1; C17, C18, C25: the engine goes on without drafts."""
    with hostile_worker() as worker:
        worker.will(DISABLING[name], op=Op.HELLO)
        rank0 = spark(worker)
        for n in range(1, 4):
            answer = hurried(rank0, *FIRST)
            assert answer.outcome is Outcome.DISABLED
            assert_zeros(answer, len(FIRST))
            assert fallbacks(rank0.counts) == {"fallback_disabled": n}
            rank0.clock.wait(60.0)
        assert worker.n_accepted == len(worker.good.hellos) == 1
        assert worker.good.steps == []


WAITING = {case.name for case in CASES if case.outcome is Outcome.TIMEOUT}

TRANSIENT: dict[str, Deed] = {
    **{
        f"status {code} with {name}": hello_status(code, body)
        for code in (4, 5, 6, 7, 8, 10, 77, -1)
        for name, body in BODIES.items()
    },
    "OK without a body": hello_status(0, b""),
    "OK with 127 bytes": hello_status(0, bytes(127)),
    "OK with 129 bytes": hello_status(0, pack(HELLO_REPLY) + b"x"),
    "op 2": field(6, "H", lambda _: Op.STEP),
    **{
        case.name: case.deed
        for case in [*echoes(), *framing()]
        if case.n_connections and case.name != "op 1"
    },
}


@pytest.mark.parametrize("name", TRANSIENT)
def test_c5_any_other_answer_to_hello_is_a_failed_connect(name: str) -> None:
    """C5, C14: no STEP, no failed attempt, no spin; the next attempt is a second later (C1)."""
    with hostile_worker() as worker:
        worker.will(TRANSIENT[name], op=Op.HELLO)
        rank0 = spark(worker, TIMEOUT_S if name in WAITING else PATIENT_S)
        for n in (1, 2):
            answer = hurried(rank0, *FIRST)
            assert answer.outcome is Outcome.NO_CONNECTION
            assert_zeros(answer, len(FIRST))
            assert fallbacks(rank0.counts) == {"fallback_no_connection": n}
        assert worker.n_accepted == 1
        assert worker.good.steps == []
        assert rank0.rounds.breaker.n_failed == 0
        rank0.clock.wait(1.0)
        assert hurried(rank0, *NEXT).outcome is Outcome.DRAFTED
        assert worker.n_accepted == 2
        assert_in_step(worker, rank0)


def test_a_worker_that_never_accepts_holds_a_round_for_the_connects_deadline_once() -> None:
    """C6: the kernel completes the connection, and nobody ever reads from it."""
    with hostile_worker(accepts=False) as worker:
        rank0 = spark(worker, TIMEOUT_S)
        began_at = time.monotonic()
        for _ in range(20):
            answer = hurried(rank0, *FIRST)
            assert answer.outcome is Outcome.NO_CONNECTION
            assert_zeros(answer, len(FIRST))
        assert TIMEOUT_S < time.monotonic() - began_at < PROMPT_S
        worker.accepts.set()
        rank0.clock.wait(1.0)
        assert hurried(rank0, *FIRST).outcome is Outcome.DRAFTED
        assert worker.n_accepted == 2


@pytest.mark.parametrize("code", [FrameStatus.NO_SESSION, FrameStatus.STALE_SEQ])
def test_a_second_hello_that_fails_drops_the_connection(code: FrameStatus) -> None:
    """C3, C5: it is said on the same connection, and is a connect like the first."""
    with hostile_worker() as worker:
        rank0 = running(worker)
        worker.will(with_status(code, keeps_body=False))
        worker.will(hello_status(FrameStatus.INTERNAL, b""), op=Op.HELLO)
        assert hurried(rank0, *HIT).outcome is Outcome.FRAME_ERROR
        assert hurried(rank0, *NEXT).outcome is Outcome.NO_CONNECTION
        assert worker.n_accepted == 1
        rank0.clock.wait(1.0)
        again = [ask._replace(first_pos=ask.first_pos + 1) for ask in NEXT]
        assert hurried(rank0, *again).outcome is Outcome.DRAFTED
        assert worker.n_accepted == 2
        assert flags(worker) == dict.fromkeys(range(4), RESYNCED)
        assert_in_step(worker, rank0)


# --- a worker that keeps failing ------------------------------------------------------------------


def test_a_worker_that_never_answers_costs_three_deadlines_and_then_one_per_cooldown() -> None:
    """§10: TRIP 3; the probe is one deadline, and every round between is free."""
    with hostile_worker() as worker:
        rank0 = running(worker, TIMEOUT_S)
        worker.will(*[nothing] * 4)
        outcomes = []
        for i in range(10):
            rank0.clock.wait(60.0)
            outcomes.append(hurried(rank0, Ask("a", 0, 6 + i, 1)).outcome)
        assert outcomes == [
            *[Outcome.TIMEOUT] * 3,
            *[Outcome.COOLDOWN] * 4,
            Outcome.TIMEOUT,
            *[Outcome.COOLDOWN] * 2,
        ]
        for i in range(10, 12):
            assert hurried(rank0, Ask("a", 0, 6 + i, 1)).outcome is Outcome.COOLDOWN
        rank0.clock.wait(60.0)
        assert hurried(rank0, Ask("a", 0, 18, 1)).outcome is Outcome.DRAFTED
        assert worker.good.held(0) == rank0.owned(0)
