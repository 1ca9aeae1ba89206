"""The demo's engine: one connection, one session, one STEP after the other (§6.3, §7.5).

Decides that an answer is right only when rank 0 could use every value of it (§6.3, v1.4) and every
entry fared as the rules of §7.2 say. Refuses to know how the worker came to be.
"""

import time
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field

from dsparkctl.contract.codes import CAN_MARGIN, WANT_MARGIN, EntryStatus, FrameStatus
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.errors import WireError
from dsparkctl.contract.messages import (
    StepReply,
    hello_frame,
    parse_hello_reply,
    parse_step_reply,
    step_head,
)
from dsparkctl.contract.records import Hello, HelloReply
from dsparkctl.demo.script import Kind, Round
from dsparkctl.net.ask import ask
from dsparkctl.net.dial import dial
from dsparkctl.net.transport import Deadline, Link
from dsparkctl.state.reply import Asked, n_consumed, refusal

ANSWER_S = 30.0
"""Longer than any round of a tiny checkpoint; a real one on a CPU may need seconds."""


class DemoError(Exception):
    """The worker did not do what the contract asks of it; one line."""


class HelloRefused(DemoError):  # noqa: N818 -- what happened
    """The worker does not want this client: another checkpoint, other terms, or no session here."""


@dataclass
class Played:
    """What came of the rounds so far."""

    worker_name: str = ""
    n_rounds: int = 0
    n_rows: int = 0
    n_drafts: int = 0
    n_reconnects: int = 0
    kinds: Counter[Kind] = field(default_factory=Counter)
    statuses: Counter[EntryStatus] = field(default_factory=Counter)
    round_trip_us: list[float] = field(default_factory=list)
    """From before the first byte went out until the reply was there, a value a round."""
    worker_us: list[float] = field(default_factory=list)
    """What the worker says it spent: rows stored and drafts made."""
    wire_us: list[float] = field(default_factory=list)
    """The round trip without what the worker spent from request received to reply sent."""


def play(endpoint: Endpoint, hello: Hello, script: Iterable[Round], session: int) -> Played:
    """Say HELLO and run every round; TransportError or DemoError at the first thing wrong."""
    played = Played()
    engine = _Engine(endpoint, hello, session, played)
    with closing(engine):
        for step_id, part in enumerate(script, 1):
            if part.reconnects:
                engine.reconnect()
                played.n_reconnects += 1
            engine.round(step_id, part)
    return played


class _Engine:
    """Rank 0's end of the wire, without a ring: the script brings the rows."""

    def __init__(self, endpoint: Endpoint, hello: Hello, session: int, played: Played) -> None:
        self._endpoint = endpoint
        self._hello = hello
        self._session = session
        self._played = played
        self._seq = 0
        self._has_margin = False
        self._link = self._connected()

    def close(self) -> None:
        self._link.close()

    def reconnect(self) -> None:
        """§7.5: another connection, the same session; the seq goes on (C8)."""
        self._link.close()
        self._link = self._connected()

    def _connected(self) -> Link:
        link = dial(self._endpoint, Deadline(ANSWER_S))
        try:
            self._say_hello(link)
        except BaseException:
            link.close()
            raise
        return link

    def _say_hello(self, link: Link) -> None:
        reply = ask(link, [hello_frame(self._next_seq(), self._session, self._hello)], _deadline())
        status = reply.header.status
        try:
            answer = parse_hello_reply(reply.body)
        except WireError as error:
            if not status:
                raise DemoError(f"{self._endpoint}: bad reply to HELLO: {error}") from None
            answer = None
        if status or answer is None:
            raise self._not_welcome(status, answer)
        if differs := _differences(self._hello, answer):
            raise HelloRefused(f"{self._endpoint}: HELLO was accepted, but {differs}")
        self._has_margin = bool(answer.capabilities & CAN_MARGIN)
        self._played.worker_name = answer.worker_name.decode("ascii", "replace")

    def _not_welcome(self, status: int, answer: HelloReply | None) -> HelloRefused:
        known = {code.value: code.name for code in FrameStatus}
        said = f"{self._endpoint}: HELLO was refused with {known.get(status, f'status {status}')}"
        match status:
            case FrameStatus.IDENTITY_MISMATCH | FrameStatus.CONFIG_MISMATCH:
                differs = _differences(self._hello, answer) if answer else ""
                return HelloRefused(f"{said}: {differs or 'its log says which value differs'}")
            case FrameStatus.BAD_VERSION:
                return HelloRefused(f"{said}: install the same release on both sides")
            case FrameStatus.UNSUPPORTED_OP:
                return HelloRefused(f"{said}: is this an admin listener? name the data listener")
        return HelloRefused(said)

    def round(self, step_id: int, part: Round) -> None:
        """One STEP; every other one asks for margins."""
        want_margin = step_id % 2 == 1
        head = step_head(
            seq=self._next_seq(),
            session=self._session,
            step_id=step_id,
            step_flags=WANT_MARGIN if want_margin else 0,
            row_bytes=self._hello.row_bytes,
            entries=part.entries,
        )
        started_s = time.perf_counter()
        reply = ask(self._link, [head, part.rows], _deadline())
        round_trip_us = (time.perf_counter() - started_s) * 1e6
        if reply.header.status:
            raise DemoError(f"round {step_id}: frame status {reply.header.status} (§9.1)")
        try:
            answer = parse_step_reply(reply.body)
        except WireError as error:
            raise DemoError(f"round {step_id}: {error}") from None
        if reason := self._fault(step_id, part, answer, want_margin and self._has_margin):
            raise DemoError(f"round {step_id}: {reason}")
        self._settle(part, answer, round_trip_us)

    def _fault(self, step_id: int, part: Round, answer: StepReply, has_margin: bool) -> str:
        """Why the answer is wrong, or an empty string."""
        h = self._hello
        reason = refusal(answer, Asked(step_id, part.entries, h.num_spec, h.window, h.vocab_size))
        if reason:
            return reason
        if (answer.margin is not None) != has_margin:
            return f"margins are {'missing' if has_margin else 'there, but nobody asked'} (R31)"
        for i, (status, outcome) in enumerate(zip(answer.statuses, part.expected, strict=True)):
            if status[:2] != (outcome.status, outcome.window_rows):
                return (
                    f"entry {i}: {EntryStatus(status.status).name} with {status.window_rows} rows,"
                    f" expected {outcome.status.name} with {outcome.window_rows} (§7.2)"
                )
        return ""

    def _settle(self, part: Round, answer: StepReply, round_trip_us: float) -> None:
        played = self._played
        played.n_rounds += 1
        for entry, status, kind in zip(part.entries, answer.statuses, part.kinds, strict=True):
            played.n_rows += entry.n_rows
            played.n_drafts += n_consumed(entry, status, self._hello.num_spec)
            played.kinds[kind] += 1
            played.statuses[EntryStatus(status.status)] += 1
        played.round_trip_us.append(round_trip_us)
        played.worker_us.append(answer.head.worker_us)
        played.wire_us.append(max(0.0, round_trip_us - answer.head.recv_to_send_us))

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq


def _deadline() -> Deadline:
    return Deadline(ANSWER_S)


def _differences(ours: Hello, theirs: HelloReply) -> str:
    """What a HELLO reply says that a client of these terms cannot live with (C17, C18)."""
    found = [
        f"{name} is {getattr(ours, name).hex()} here, {getattr(theirs, name).hex()} there"
        for name in ("drafter_identity", "markov_identity")
        if getattr(ours, name) != getattr(theirs, name)
    ]
    for name in ("window", "num_spec"):
        if getattr(ours, name) != getattr(theirs, name):
            found.append(f"{name} is {getattr(ours, name)} here, {getattr(theirs, name)} there")
    for name in ("max_slots", "max_rows_per_step"):
        if getattr(ours, name) > getattr(theirs, name):
            found.append(
                f"{name} is {getattr(ours, name)} here, at most {getattr(theirs, name)} there"
            )
    return "; ".join(found)
