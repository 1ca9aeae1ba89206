"""What rank 0's tests live in: a worker that does everything right, until a test spoils its answer.

`GoodWorker` answers bytes with bytes and keeps rows by position, as §7.2 has it; `FakeLink` and
`FakeDial` carry them without a socket; `BytesRows` is a ring of bytes; `Bench` runs whole rounds.
"""

import struct
import zlib
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple

from dsparkctl.client.link import WorkerLink
from dsparkctl.client.rounds import Answer, Rounds
from dsparkctl.client.rows import Batch
from dsparkctl.client.switch import Switch
from dsparkctl.contract.codes import (
    CAN_MARGIN,
    CAN_TAPS_BF16,
    HAS_MARGIN,
    WANT_MARGIN,
    EntryStatus,
    Op,
    PayloadKind,
    SampleMode,
)
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.framing import HEADER_BYTES
from dsparkctl.contract.layout import Buffer, pack
from dsparkctl.contract.messages import (
    Limits,
    StepReply,
    frame,
    parse_header,
    parse_hello,
    parse_step,
    parse_step_reply,
    step_reply_frame,
)
from dsparkctl.contract.records import (
    AppHeader,
    Hello,
    HelloReply,
    ReplyHeader,
    ReqEntry,
    ReqStatus,
    StepHeader,
)
from dsparkctl.net.transport import Broken, Deadline, Link
from dsparkctl.state.breaker import Breaker
from dsparkctl.state.ledger import Part, Sampled, Scheduled
from dsparkctl.state.n_out import Caps
from dsparkctl.state.reply import n_consumed
from dsparkctl.state.session import Session, judge_frame, judge_hello, opened
from dsparkctl.state.window import VACANT, Bounds, Slot, apply_entry

ENDPOINT = Endpoint("tcp", "10.0.0.1", 18620)
N, W, VOCAB, SLOTS, ROW_BYTES = 3, 8, 100, 4, 8

HELLO = Hello(
    proto_min=1,
    proto_max=1,
    num_spec=N,
    window=W,
    hidden=4,
    n_taps=1,
    tap_layer_ids=(2, 0, 0, 0),
    payload_kind=PayloadKind.TAPS_BF16,
    row_bytes=ROW_BYTES,
    noise_token_id=99,
    vocab_size=VOCAB,
    max_model_len=1000,
    max_slots=SLOTS,
    max_rows_per_step=SLOTS * W,
    sample_mode=SampleMode.GREEDY,
    tp_size=2,
    reserved=0,
    drafter_identity=b"d" * 32,
    markov_identity=b"m" * 32,
    client_name=b"bench",
)

HELLO_REPLY = HelloReply(
    proto=1,
    max_slots=SLOTS,
    max_rows_per_step=SLOTS * W,
    capabilities=CAN_TAPS_BF16 | CAN_MARGIN,
    window=W,
    num_spec=N,
    drafter_identity=HELLO.drafter_identity,
    markov_identity=HELLO.markov_identity,
    worker_name=b"good worker",
)


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        self.now_s += seconds


# --- the worker -----------------------------------------------------------------------------------


class Seen(NamedTuple):
    """A STEP as the worker got it; `rows[i]` are those of entry i."""

    header: AppHeader
    head: StepHeader
    entries: Sequence[ReqEntry]
    rows: list[list[bytes]]

    def entry(self, slot: int) -> ReqEntry:
        return next(entry for entry in self.entries if entry.slot == slot)


class GoodWorker:
    """Answers every message as the contract says, and remembers what it was sent."""

    def __init__(self, own: Hello = HELLO, answer: HelloReply = HELLO_REPLY) -> None:
        self.own, self.answer = own, answer
        self.session: Session | None = None
        self.slots: dict[int, Slot] = {}
        self.rows: dict[int, dict[int, bytes]] = {}
        self.hellos: list[AppHeader] = []
        self.steps: list[Seen] = []
        self._is_bound = False

    def accepted(self) -> None:
        """A new connection: nobody has said HELLO on it (R4)."""
        self._is_bound = False

    def reply(self, message: bytes) -> bytes:
        header = parse_header(message)
        if header.op == Op.HELLO:
            return self._hello(header, message[HEADER_BYTES:])
        return self._step(header, memoryview(message)[HEADER_BYTES:])

    def held(self, slot: int) -> dict[int, bytes]:
        """The rows of a slot's window, by position."""
        lo, hi = self.slots[slot].window
        return {pos: self.rows[slot][pos] for pos in range(lo, hi + 1)}

    def _hello(self, header: AppHeader, body: bytes) -> bytes:
        self.hellos.append(header)
        hello = parse_hello(body)
        verdict = judge_hello(hello, header.session, self.own)
        if not verdict.status:
            self.session, is_new = opened(self.session, header.session, hello)
            self._is_bound = True
            if is_new:
                self.slots.clear()
                self.rows.clear()
        return frame(Op.HELLO, header.seq, header.session, pack(self.answer), verdict.status)

    def _step(self, header: AppHeader, body: memoryview) -> bytes:
        verdict = judge_frame(self.session, self._is_bound, header.session, header.seq)
        if verdict.status:
            return frame(Op.STEP, header.seq, header.session, b"", verdict.status)
        assert self.session is not None
        self.session = self.session._replace(last_seq=header.seq)
        step = parse_step(body, Limits(SLOTS, SLOTS * W, ROW_BYTES))
        at = count()
        rows = [
            [bytes(step.rows[next(at) * ROW_BYTES :][:ROW_BYTES]) for _ in range(entry.n_rows)]
            for entry in step.entries
        ]
        self.steps.append(Seen(header, step.head, step.entries, rows))
        statuses = [self._apply(*pair) for pair in zip(step.entries, rows, strict=True)]
        return encoded(header, good_reply(step.head, step.entries, statuses))

    def _apply(self, entry: ReqEntry, rows: list[bytes]) -> ReqStatus:
        bounds = Bounds(W, VOCAB, self.own.max_model_len)
        outcome = apply_entry(self.slots.get(entry.slot, VACANT), entry, bounds)
        self.slots[entry.slot] = outcome.slot
        if outcome.status <= EntryStatus.PARTIAL_WINDOW:
            kept = self.rows.setdefault(entry.slot, {})
            kept.update(zip(count(entry.first_pos), rows, strict=False))
        return ReqStatus(outcome.status, outcome.window_rows, entry.generation)


def good_reply(
    head: StepHeader, entries: Sequence[ReqEntry], statuses: Sequence[ReqStatus]
) -> StepReply:
    """Drafts that name their position: none of them is zero."""
    ids, confidence = [], []
    for entry, status in zip(entries, statuses, strict=True):
        for j in range(N):
            is_drafted = j < n_consumed(entry, status, N)
            ids.append(1 + (entry.anchor_pos + j) % (VOCAB - 1) if is_drafted else 0)
            confidence.append(0.5 if is_drafted else 0.0)
    wants = head.step_flags & WANT_MARGIN
    return StepReply(
        ReplyHeader(head.step_id, len(entries), N, HAS_MARGIN if wants else 0, 1, 2, (0, 0)),
        statuses,
        tuple(ids),
        tuple(confidence),
        tuple(confidence) if wants else None,
    )


def encoded(header: AppHeader, reply: StepReply) -> bytes:
    """The reply as a whole message."""
    return step_reply_frame(
        seq=header.seq,
        session=header.session,
        head=reply.head,
        statuses=reply.statuses,
        draft_ids=reply.draft_ids,
        confidence=reply.confidence,
        margin=reply.margin,
    )


# --- carriers -------------------------------------------------------------------------------------

Fault = Callable[[bytes], bytes]
"""Makes another reply of the good one, or raises what a carrier raises."""


def status(code: int) -> Fault:
    """The reply's own header with this status, and no body."""

    def spoil(reply: bytes) -> bytes:
        header = parse_header(reply)
        return frame(header.op, header.seq, header.session, b"", code)

    return spoil


def raising(error: Exception) -> Fault:
    """The worker applied the message; its reply never came."""

    def spoil(_: bytes) -> bytes:
        raise error

    return spoil


def edited(change: Callable[[StepReply], StepReply]) -> Fault:
    """The good reply, but for this change."""

    def spoil(reply: bytes) -> bytes:
        return encoded(parse_header(reply), change(parse_step_reply(reply[HEADER_BYTES:])))

    return spoil


def entry_status(code: int, *which: int, window_rows: int = 0) -> Fault:
    """Entries `which` (all without any) get this status, and zeros where there are no drafts."""

    def change(reply: StepReply) -> StepReply:
        n = len(reply.statuses)
        hit = which or tuple(range(n))
        statuses = [
            ReqStatus(code, window_rows, old.generation) if i in hit else old
            for i, old in enumerate(reply.statuses)
        ]
        dead = {i for i in hit if code > EntryStatus.PARTIAL_WINDOW}
        alive = [i // N not in dead for i in range(n * N)]
        return reply._replace(
            statuses=statuses,
            draft_ids=tuple(x * ok for x, ok in zip(reply.draft_ids, alive, strict=True)),
            confidence=tuple(x * ok for x, ok in zip(reply.confidence, alive, strict=True)),
            margin=reply.margin
            and tuple(x * ok for x, ok in zip(reply.margin, alive, strict=True)),
        )

    return edited(change)


class FakeLink:
    """A carrier without a wire; a `Link`."""

    def __init__(self, dial: "FakeDial") -> None:
        self.is_closed = False
        self.has_strays = False
        self._dial = dial

    @property
    def endpoint(self) -> Endpoint:
        return ENDPOINT

    def exchange(self, parts: Sequence[Buffer], deadline: Deadline) -> memoryview:
        self.check()
        self._dial.exchanges.append(deadline)
        message = b"".join(bytes(part) for part in parts)
        self._dial.sent.append(parse_header(message))
        try:
            reply = self._dial.worker.reply(message)
            faults = self._dial.faults[Op(parse_header(message).op)]
            return memoryview(faults.pop(0)(reply) if faults else reply)
        except Exception:
            self.close()
            raise

    def check(self) -> None:
        if self.is_closed or self.has_strays:
            self.close()
            raise Broken(f"{ENDPOINT}: closed, or bytes came that no request asked for")

    def close(self) -> None:
        self.is_closed = True


class FakeDial:
    """Connects to `worker`, or fails as `failures` says, in turn."""

    def __init__(self, worker: GoodWorker) -> None:
        self.worker = worker
        self.faults: dict[Op, list[Fault]] = {Op.HELLO: [], Op.STEP: []}
        self.failures: list[Exception] = []
        self.dialled: list[Deadline] = []
        self.exchanges: list[Deadline] = []
        self.sent: list[AppHeader] = []
        self.links: list[FakeLink] = []
        self.takes_s: Callable[[], None] = lambda: None

    def __call__(self, deadline: Deadline) -> FakeLink:
        self.dialled.append(deadline)
        self.takes_s()
        if self.failures:
            raise self.failures.pop(0)
        self.worker.accepted()
        self.links.append(FakeLink(self))
        return self.links[-1]

    def ops(self) -> list[Op]:
        """Every message that was sent, by its op."""
        return [Op(header.op) for header in self.sent]


# --- whole rounds ---------------------------------------------------------------------------------


def row(request_id: str, pos: int) -> bytes:
    """The tap row of one position: no other has these bytes."""
    return struct.pack("<II", zlib.crc32(request_id.encode()), pos)


class Ask(NamedTuple):
    """One request in one engine step."""

    id: str
    slot: int
    first_pos: int
    n_rows: int
    needs_draft: bool = True
    n_rejected: int = 0
    k_window: int = 0
    token: int = 1


class Taps(NamedTuple):
    """An engine step's tensors: the rows of all requests, one after the other."""

    rows: Sequence[bytes]
    sampled: Sequence[Sampled]


def batch(*asks: Ask) -> Batch:
    requests: list[Scheduled] = []
    rows: list[bytes] = []
    for ask in asks:
        span = range(ask.first_pos, ask.first_pos + ask.n_rows)
        requests.append(Scheduled(ask.id, ask.slot, len(rows), span.start, len(span), ask.k_window))
        # A rejected row is no row of its position: it must never be kept.
        n_kept = len(span) - ask.n_rejected
        rows += [row(ask.id if i < n_kept else "rejected", pos) for i, pos in enumerate(span)]
    sampled = [Sampled(ask.n_rejected, ask.needs_draft, ask.token) for ask in asks]
    return Batch(requests, Taps(rows, sampled))


class BytesRows:
    """The ring as bytes, `[slot, pos mod W]` (§7.3); a `Rows`."""

    def __init__(self) -> None:
        self.ring: dict[tuple[int, int], bytes] = {}
        self.staged: list[bytes] = []
        self.stagings: list[bool] = []

    def keep(self, parts: Sequence[Part], tensors: object, *, stage: bool) -> Sequence[Sampled]:
        assert isinstance(tensors, Taps)
        self.stagings.append(stage)
        self.staged = []
        for part, sampled in zip(parts, tensors.sampled, strict=True):
            for i in range(part.n_rows - sampled.n_rejected):
                self.ring[part.slot, (part.first_pos + i) % W] = tensors.rows[part.row + i]
            if stage:
                sent = part.sent(sampled.n_rejected, W)
                self.staged += [self.ring[part.slot, pos % W] for pos in sent]
        return tensors.sampled

    def message(self, head: bytes, n_rows: int) -> Buffer:
        assert n_rows == len(self.staged)
        return head + b"".join(self.staged)


class Spark:
    """Rank 0 as a whole, on `dial`'s carriers and `clock`'s seconds."""

    def __init__(
        self,
        dial: Callable[[Deadline], Link],
        clock: Clock,
        *,
        trip: int = 3,
        cooldown: int = 4,
        timeout_s: float = 0.05,
        switch: Switch | None = None,
        caps: Caps | None = None,
        want_margin: bool = False,
    ) -> None:
        self.clock = clock
        sessions = count(0xA1)
        self.link = WorkerLink(
            HELLO,
            dial,
            timeout_s=timeout_s,
            clock=clock,
            new_session=lambda: next(sessions),
        )
        self.rows = BytesRows()
        self.rounds = Rounds(
            self.link,
            self.rows,
            Breaker(trip, cooldown),
            switch=switch or Switch(None),
            caps=caps or Caps((), "not asked for"),
            clock=clock,
            want_margin=want_margin,
        )

    def run(self, *asks: Ask) -> Answer:
        return self.rounds.run(batch(*asks))

    @property
    def counts(self) -> dict[str, object]:
        return self.rounds.counters.snapshot()

    def dirty(self) -> set[int]:
        return {slot for slot, page in enumerate(self.rounds.ledger.pages) if page.is_dirty}

    def owned(self, slot: int) -> dict[int, bytes]:
        """What rank 0's own ring holds of a slot."""
        lo, hi = self.rounds.ledger.pages[slot].window
        return {pos: self.rows.ring[slot, pos % W] for pos in range(lo, hi + 1)}


class Bench(Spark):
    """Rank 0 against a worker in the same thread, on a clock that stands still."""

    def __init__(self, **given: Any) -> None:
        self.worker = GoodWorker()
        self.dial = FakeDial(self.worker)
        super().__init__(self.dial, Clock(), **given)

    def spoil(self, *faults: Fault, op: Op = Op.STEP) -> None:
        """The next replies to `op` are spoilt, in turn."""
        self.dial.faults[op] += faults


def fallbacks(counts: dict[str, object]) -> dict[str, object]:
    """The fallback counters that moved."""
    return {key: n for key, n in counts.items() if key.startswith("fallback_") and n}
