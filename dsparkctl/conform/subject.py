"""The worker under examination, as the checks speak to it.

Decides how a session is opened, how seqs are counted and how a STEP is put together. Every reply to
a STEP is judged as rank 0 would judge it (§6.3), whatever a check was after.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from dsparkctl.conform.line import Answer, Dial, Kind, Line, NoAnswer, op_name, status_name
from dsparkctl.conform.rows import block
from dsparkctl.contract.codes import HAS_MARGIN, NEED_DRAFT, FrameStatus, Op
from dsparkctl.contract.errors import WireError
from dsparkctl.contract.layout import pack
from dsparkctl.contract.messages import (
    StepReply,
    frame,
    hello_frame,
    parse_hello_reply,
    parse_step_reply,
    step_head,
)
from dsparkctl.contract.records import Hello, HelloReply, ReqEntry, ReqStatus, Reset
from dsparkctl.state.reply import Asked, refusal


class Drafted(NamedTuple):
    """One entry's part of a reply."""

    status: ReqStatus
    draft_ids: tuple[int, ...]
    confidence: tuple[float, ...]


class Subject:
    """One worker: how it is reached, and the terms of HELLO that it should accept."""

    def __init__(
        self, dial: Dial, hello: Hello, *, seed: int, timeout_s: float, is_stream: bool = True
    ) -> None:
        self._dial = dial
        self.is_stream = is_stream
        """Whether messages lie on a stream behind their lengths; ofl keeps them apart (§5)."""
        self.hello = hello
        self.seed = seed
        self.timeout_s = timeout_s
        self.n_replies = 0
        self.n_other = 0
        self._dice = random.Random(seed)

    def dice(self, name: str) -> random.Random:
        """Chance of a check's own: a check alone throws what it throws among all."""
        return random.Random(f"{self.seed}/{name}")

    def session_id(self) -> int:
        """A nonzero id that nobody had before (§6.1)."""
        return self._dice.randrange(1, 2**32)

    @contextmanager
    def line(self) -> Iterator[Line]:
        """The newest connection; NoAnswer when nobody accepts it."""
        line = Line(self._dial, self.timeout_s)
        try:
            yield line
        finally:
            self.n_replies += line.n_replies
            self.n_other += line.n_other
            line.close()

    @contextmanager
    def session(self) -> Iterator["Talk"]:
        """A connection that has said HELLO with a new session; NoAnswer when that is refused."""
        with self.line() as line:
            talk = Talk(self, line, self.session_id())
            talk.greet()
            yield talk

    def is_alive(self) -> bool:
        """PING on a connection of its own."""
        try:
            with self.line() as line:
                return line.ask(frame(Op.PING, 0, 0)).status == FrameStatus.OK
        except NoAnswer:
            return False


class Talk:
    """A session on one line."""

    def __init__(self, subject: Subject, line: Line, session: int) -> None:
        self.subject = subject
        self.hello = subject.hello
        self.line = line
        self.session = session
        self.seq = 0
        self.step_id = 0
        self.capabilities = 0

    # --- messages ---------------------------------------------------------------------------------

    def next_seq(self) -> int:
        self.seq += 1
        return self.seq

    def say_hello(self, hello: Hello | None = None, *, session: int | None = None) -> Answer:
        """HELLO, whatever comes of it."""
        mine = self.session if session is None else session
        return self.line.ask(hello_frame(self.next_seq(), mine, hello or self.hello))

    def greet(self) -> HelloReply:
        """HELLO that has to be accepted; NoAnswer otherwise."""
        answer = self.say_hello()
        if answer.status != FrameStatus.OK:
            raise NoAnswer(f"HELLO with the given terms: {answer}")
        try:
            reply = parse_hello_reply(answer.body)
        except WireError as error:
            raise NoAnswer(f"HELLO with the given terms: {error}") from None
        self.capabilities = reply.capabilities
        return reply

    def ping(self) -> Answer:
        return self.line.ask(frame(Op.PING, 0, self.session))

    def reset(self, mask: int) -> Answer:
        return self.line.ask(frame(Op.RESET, self.next_seq(), self.session, pack(Reset(mask))))

    def stats(self) -> Answer:
        return self.line.ask(frame(Op.STATS, 0, self.session))

    def step(
        self, entries: Sequence[ReqEntry], rows: bytes | None = None, *, flags: int = 0, **of: int
    ) -> Answer:
        """A STEP, whatever comes of it; rows by themselves are those named "" at their positions.
        `of` gives seq, session or step_id other values."""
        self.step_id += 1
        head = step_head(
            seq=of["seq"] if "seq" in of else self.next_seq(),
            session=of.get("session", self.session),
            step_id=of.get("step_id", self.step_id),
            step_flags=flags,
            row_bytes=self.hello.row_bytes,
            entries=entries,
        )
        if rows is None:
            rows = b"".join(self.rows(entry) for entry in entries)
        return self.line.ask(head + rows)

    def rows(self, entry: ReqEntry, name: str = "") -> bytes:
        positions = range(entry.first_pos, entry.first_pos + entry.n_rows)
        return block(name, positions, self.hello.row_bytes)

    # --- a STEP that must be answered -------------------------------------------------------------

    def drafted(
        self, entries: Sequence[ReqEntry], rows: bytes | None = None, *, flags: int = 0
    ) -> list[Drafted]:
        """What a STEP came to, entry by entry; NoAnswer when its reply is not one that rank 0 may
        use."""
        answer = self.step(entries, rows, flags=flags)
        reply = self.judged(entries, answer)
        n = self.hello.num_spec
        return [
            Drafted(
                status,
                reply.draft_ids[i * n : (i + 1) * n],
                reply.confidence[i * n : (i + 1) * n],
            )
            for i, status in enumerate(reply.statuses)
        ]

    def judged(self, entries: Sequence[ReqEntry], answer: Answer, step_id: int = -1) -> StepReply:
        """The reply to a STEP with these entries, held against §6.1 and §6.3; NoAnswer."""
        said = told(entries)
        if answer.kind is not Kind.REPLY or answer.header is None:
            raise NoAnswer(f"{said}: {answer}")
        header = answer.header
        if header.status:
            raise NoAnswer(f"{said}: {status_name(header.status)}")
        if (header.op, header.session) != (Op.STEP, self.session):
            raise NoAnswer(f"{said}: a reply to {op_name(header.op)} of session {header.session}")
        try:
            reply = parse_step_reply(answer.body)
        except WireError as error:
            raise NoAnswer(f"{said}: {error}") from None
        asked = Asked(
            self.step_id if step_id < 0 else step_id,
            entries,
            self.hello.num_spec,
            self.hello.window,
            self.hello.vocab_size,
        )
        if reason := refusal(reply, asked):
            raise NoAnswer(f"{said}: {reason} (§6.3)")
        return reply


def entry(slot: int, first_pos: int, n_rows: int, **of: Any) -> ReqEntry:
    """An entry as a Spark would send it: generation 1, NEED_DRAFT, anchor behind its last row."""
    given = {
        "slot": slot,
        "req_flags": NEED_DRAFT,
        "k_window": 0,
        "n_out": 0,
        "generation": 1,
        "first_pos": first_pos,
        "n_rows": n_rows,
        "anchor_token": 1,
        "anchor_pos": first_pos + n_rows,
    }
    return ReqEntry(**{**given, **of})


def told(entries: Sequence[ReqEntry]) -> str:
    """Entries for a person: slot, generation, positions, flags."""
    parts = [
        f"slot {one.slot} gen {one.generation} rows {one.n_rows} from {one.first_pos} "
        f"anchor {one.anchor_pos} flags {one.req_flags}"
        for one in entries[:4]
    ]
    return "STEP [" + "; ".join(parts) + ("; …]" if len(entries) > len(parts) else "]")


def has_margin(reply: StepReply) -> bool:
    return bool(reply.head.reply_flags & HAS_MARGIN)
