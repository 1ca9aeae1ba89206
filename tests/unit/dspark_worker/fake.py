"""A desk with a drafter that only remembers, and a client that speaks to it without a socket."""

import json
from collections.abc import Sequence
from typing import Any

from dspark_worker.desk import Desk
from dspark_worker.drafter import Append, Draft, DraftRequest, Fault
from dsparkctl.contract.codes import NEED_DRAFT, FrameStatus, Op
from dsparkctl.contract.messages import (
    StepReply,
    frame,
    hello_frame,
    parse_header,
    parse_step_reply,
    step_head,
)
from dsparkctl.contract.records import AppHeader, Hello, ReqEntry
from dsparkctl.state.reply import Asked, refusal

N, W, ROW_BYTES, VOCAB, MAX_LEN, SLOTS = 3, 4, 16, 10, 20, 3

OWN = Hello(
    *(1, 1, N, W, 8, 1, (5, 0, 0, 0), 1, ROW_BYTES, 9, VOCAB, MAX_LEN, SLOTS, SLOTS * W, 1, 2, 0),
    *(b"d" * 32, b"m" * 32, b"fake"),
)


class FakeDrafter:
    """Remembers rows by slot and position; drafts from nothing but the request.

    A request for a position that was never stored is an AssertionError: the desk must not make one.
    """

    backend = "fake"

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], bytes] = {}
        self.appended: list[list[Append]] = []
        self.asked: list[list[DraftRequest]] = []
        self.max_model_len = 0
        self.append_raises: set[int] = set()
        self.append_faults: set[int] = set()
        self.append_forgets: set[int] = set()
        self.draft_raises: set[int] = set()
        self.draft_faults: set[int] = set()
        self.draft_forgets: set[int] = set()
        self.draft_says: dict[int, Draft] = {}

    def append(self, parts: Sequence[Append]) -> list[Fault | None]:
        self.appended.append([part._replace(rows=memoryview(bytes(part.rows))) for part in parts])
        if self.append_raises.intersection(part.slot for part in parts):
            raise RuntimeError("append raised")
        for part in parts:
            assert len(part.rows) == part.n_rows * ROW_BYTES
            for i in range(part.n_rows):
                row = bytes(part.rows[i * ROW_BYTES : (i + 1) * ROW_BYTES])
                self.rows[part.slot, part.first_pos + i] = row
        return [
            Fault("append fault") if part.slot in self.append_faults else None
            for part in parts
            if part.slot not in self.append_forgets
        ]

    def draft(
        self, requests: Sequence[DraftRequest], *, max_model_len: int, want_margin: bool
    ) -> list[Draft | Fault]:
        self.asked.append(list(requests))
        self.max_model_len = max_model_len
        if self.draft_raises.intersection(request.slot for request in requests):
            raise RuntimeError("draft raised")
        return [self._one(r) for r in requests if r.slot not in self.draft_forgets]

    def _one(self, request: DraftRequest) -> Draft | Fault:
        assert 0 <= request.lo_pos <= request.anchor_pos <= request.lo_pos + W
        assert 1 <= request.n_out <= N
        for pos in range(request.lo_pos, request.anchor_pos):
            assert (request.slot, pos) in self.rows
        if request.slot in self.draft_faults:
            return Fault("draft fault")
        return self.draft_says.get(request.slot) or good_draft(request.n_out)


def good_draft(n_out: int) -> Draft:
    zeros = [0] * (N - n_out)
    return Draft(
        [*([7, 8, 9][:n_out]), *zeros], [*([0.5] * n_out), *zeros], [*([1.5] * n_out), *zeros]
    )


def entry(
    slot: int = 0,
    *,
    n_rows: int = 0,
    first: int = 0,
    anchor: int | None = None,
    generation: int = 1,
    flags: int = NEED_DRAFT,
    n_out: int = 0,
    token: int = 1,
    k: int = 0,
) -> ReqEntry:
    if anchor is None:
        anchor = first + n_rows
    return ReqEntry(slot, flags, k, n_out, generation, first, n_rows, token, anchor)


def step_frame(
    *entries: ReqEntry, seq: int, session: int = 1, flags: int = 0, step_id: int = 77
) -> bytes:
    """A whole STEP; row i of the block holds the byte i + 1."""
    head = step_head(
        seq=seq, session=session, step_id=step_id, step_flags=flags, row_bytes=ROW_BYTES,
        entries=entries,
    )  # fmt: skip
    n_rows = sum(e.n_rows for e in entries)
    return head + b"".join(bytes([(i + 1) & 0xFF]) * ROW_BYTES for i in range(n_rows))


def refusal_of(reply: StepReply, entries: Sequence[ReqEntry], step_id: int = 77) -> str:
    """Why rank 0 would refuse the reply (§6.3, v1.4), or nothing.

    To a negative anchor_pos no reply is right, word by word (0 rows are more than min(W, −1)): the
    0 that is the least an unsigned field can say is taken as good (R18).
    """
    asked = [e._replace(anchor_pos=max(0, e.anchor_pos)) for e in entries]
    return refusal(reply, Asked(step_id, asked, N, W, VOCAB))


class Clock:
    """Seconds that pass only when told to: `step_s` with every look."""

    def __init__(self) -> None:
        self.now = 100.0
        self.step_s = 0.0

    def __call__(self) -> float:
        self.now += self.step_s
        return self.now


class Talk:
    """A client on the desk's data route; `admin=True` takes the other one."""

    def __init__(self, own: Hello = OWN) -> None:
        self.drafter = FakeDrafter()
        self.clock = Clock()
        self.desk = Desk(own, self.drafter, worker_name="fake worker", clock=self.clock)
        self.desk.connected()
        self.seq = 0

    def ask(self, message: bytes, *, admin: bool = False) -> tuple[AppHeader, bytes]:
        asked = parse_header(message)
        answer = self.desk.answer_admin if admin else self.desk.answer
        reply = answer(asked, memoryview(message)[32:], self.clock())
        header = parse_header(reply)
        # §6.1: every reply echoes these, whatever it says.
        assert (header.op, header.seq, header.session) == (asked.op, asked.seq, asked.session)
        assert (header.version, header.flags) == (1, 0)
        return header, reply[32:]

    def status(self, message: bytes, *, admin: bool = False) -> FrameStatus:
        return FrameStatus(self.ask(message, admin=admin)[0].status)

    def hello(self, hello: Hello = OWN, *, session: int = 1, seq: int = 1) -> FrameStatus:
        header, body = self.ask(hello_frame(seq, session, hello))
        assert len(body) == 128  # §6.2, R8
        return FrameStatus(header.status)

    def reset(self, mask: int, *, seq: int | None = None, admin: bool = False) -> FrameStatus:
        return self.status(
            frame(Op.RESET, self._next(seq), 1, mask.to_bytes(4, "little")), admin=admin
        )

    def step_status(self, *entries: ReqEntry, seq: int | None = None, session: int = 1) -> Any:
        return self.status(step_frame(*entries, seq=self._next(seq), session=session))

    def step(self, *entries: ReqEntry, flags: int = 0) -> StepReply:
        """A STEP that must be applied, with a reply that rank 0 must accept."""
        header, body = self.ask(step_frame(*entries, seq=self._next(None), flags=flags))
        assert header.status == 0
        reply = parse_step_reply(body)
        assert refusal_of(reply, entries) == ""
        return reply

    def results(self, *entries: ReqEntry) -> list[tuple[int, int]]:
        """Status and window_rows of every entry."""
        return [(s.status, s.window_rows) for s in self.step(*entries).statuses]

    def stats(self, *, admin: bool = False) -> dict[str, Any]:
        header, body = self.ask(frame(Op.STATS, 0, 0), admin=admin)
        assert header.status == 0
        found: dict[str, Any] = json.loads(body)
        return found

    def _next(self, seq: int | None) -> int:
        if seq is None:
            self.seq += 1
            return self.seq
        return seq
