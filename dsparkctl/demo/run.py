"""The demo's rounds over one connection: HELLO, STEPs, one reconnect, every reply checked.

Decides what ends the demo: a refused HELLO, a lost connection, a reply that rank 0 would refuse
(§6.3), or a status that differs from the own book of §7.2. Refuses to know the story and how it is
shown.
"""

import secrets
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from dsparkctl.contract.codes import (
    CAN_MARGIN,
    NEW_GEN,
    RESYNC,
    WANT_MARGIN,
    EntryStatus,
    FrameStatus,
)
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.errors import WireError
from dsparkctl.contract.messages import (
    StepReply,
    hello_frame,
    parse_hello_reply,
    parse_step_reply,
    step_head,
)
from dsparkctl.contract.records import Hello, HelloReply, ReqEntry
from dsparkctl.demo.script import Round
from dsparkctl.exits import Exit
from dsparkctl.net.ask import Reply, ask
from dsparkctl.net.dial import dial
from dsparkctl.net.transport import Deadline, TransportError
from dsparkctl.state.reply import Asked, n_consumed, refusal
from dsparkctl.state.window import VACANT, Bounds, apply_entry

TIMEOUT_S: Final = 10.0
"""For one exchange. An engine waits milliseconds; a demo may run on a busy laptop's CPU."""


class DemoError(Exception):
    """The demo did not come through; one line, and the exit code it deserves."""

    def __init__(self, reason: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(reason)
        self.code = code


@dataclass
class Tally:
    """What happened, and how long it took in µs a round."""

    n_rounds: int = 0
    n_rows: int = 0
    n_drafts: int = 0
    n_margins: int = 0
    n_hellos: int = 0
    acts: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    round_trip_us: list[float] = field(default_factory=list)
    worker_us: list[float] = field(default_factory=list)
    """Apply and draft, as the worker timed it (§6.3)."""
    wire_us: list[float] = field(default_factory=list)
    """The round trip without the worker's own share, from request received to reply sent."""


def play(endpoint: Endpoint, hello: Hello, story: Iterable[Round]) -> Tally:
    """Speak the rounds to the worker at `endpoint`; DemoError when one of them goes wrong."""
    engine = _Engine(endpoint, hello)
    try:
        engine.connect()
        for one in story:
            if one.reconnect:
                engine.close()
                engine.connect()
            engine.step(one)
    except TransportError as error:
        raise DemoError(str(error)) from None
    finally:
        engine.close()
    return engine.tally


class _Engine:
    """Rank 0's end: one session, one connection at a time, and the book of every slot."""

    def __init__(self, endpoint: Endpoint, hello: Hello) -> None:
        self.tally = Tally()
        self._endpoint = endpoint
        self._hello = hello
        self._bounds = Bounds(hello.window, hello.vocab_size, hello.max_model_len)
        self._book = [VACANT] * hello.max_slots
        # Random, as §7.5 asks: a worker that knows the last demo must not take this one for it.
        self._session = 1 + secrets.randbelow(0xFFFFFFFF)
        self._seq = 0
        self._can_margin = False
        self._close = lambda: None

    def close(self) -> None:
        self._close()

    def connect(self) -> None:
        """A connection and its HELLO (§6.2), the same session every time."""
        deadline = Deadline(TIMEOUT_S)
        self._link = dial(self._endpoint, deadline)
        self._close = self._link.close
        reply = ask(self._link, [hello_frame(self._next(), self._session, self._hello)], deadline)
        self.tally.n_hellos += 1
        try:
            said = parse_hello_reply(reply.body)
        except WireError as error:
            raise DemoError(f"{self._endpoint}: {error}") from None
        self._judge_hello(reply, said)
        self._can_margin = bool(said.capabilities & CAN_MARGIN)

    def step(self, one: Round) -> None:
        """One round (§6.3), its reply checked against the book."""
        entries = [part.entry for part in one.parts]
        step_id = self.tally.n_rounds + 1
        head = step_head(
            seq=self._next(),
            session=self._session,
            step_id=step_id,
            step_flags=WANT_MARGIN if one.want_margin and self._can_margin else 0,
            row_bytes=self._hello.row_bytes,
            entries=entries,
        )
        began_at = time.perf_counter()
        answer = ask(self._link, [head, *(part.rows for part in one.parts)], Deadline(TIMEOUT_S))
        took_us = (time.perf_counter() - began_at) * 1e6
        if answer.header.status:
            raise self._wrong(step_id, f"STEP was refused: {_status_name(answer.header.status)}")
        try:
            reply = parse_step_reply(answer.body)
        except WireError as error:
            raise self._wrong(step_id, str(error)) from None
        self._check(reply, entries, step_id)
        self._count(one, reply, took_us)

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    def _judge_hello(self, reply: Reply, said: HelloReply) -> None:
        """A refusal, or an OK that means another drafter than ours (C18), ends the demo."""
        ours = self._hello
        for name in ("drafter_identity", "markov_identity"):
            here, there = getattr(ours, name).hex(), getattr(said, name).hex()
            if here != there:
                raise DemoError(
                    f"{self._endpoint}: {_status_name(FrameStatus.IDENTITY_MISMATCH)}: {name} is "
                    f"{here} here, {there} there; name the worker's checkpoint with --checkpoint",
                    Exit.MISMATCH,
                )
        same = (said.window, said.num_spec) == (ours.window, ours.num_spec)
        if reply.header.status or not same:
            status = reply.header.status or FrameStatus.CONFIG_MISMATCH
            raise DemoError(
                f"{self._endpoint}: HELLO was refused: {_status_name(status)}; the worker has window "
                f"{said.window}, num_spec {said.num_spec}, max_slots {said.max_slots}, "
                f"max_rows_per_step {said.max_rows_per_step}, the demo asks for {ours.window}, "
                f"{ours.num_spec}, {ours.max_slots}, {ours.max_rows_per_step}",
                Exit.MISMATCH,
            )

    def _check(self, reply: StepReply, entries: list[ReqEntry], step_id: int) -> None:
        hello = self._hello
        asked = Asked(step_id, entries, hello.num_spec, hello.window, hello.vocab_size)
        if reason := refusal(reply, asked):
            raise self._wrong(step_id, f"rank 0 would refuse the reply: {reason}")
        for entry, status in zip(entries, reply.statuses, strict=True):
            expected = apply_entry(self._book[entry.slot], entry, self._bounds)
            self._book[entry.slot] = expected.slot
            if (status.status, status.window_rows) != (expected.status, expected.window_rows):
                raise self._wrong(
                    step_id,
                    f"slot {entry.slot}: {EntryStatus(status.status).name} with "
                    f"{status.window_rows} rows, the book says {expected.status.name} with "
                    f"{expected.window_rows}",
                )

    def _count(self, one: Round, reply: StepReply, took_us: float) -> None:
        tally, n = self.tally, self._hello.num_spec
        tally.n_rounds += 1
        for part, status in zip(one.parts, reply.statuses, strict=True):
            n_drafts = n_consumed(part.entry, status, n)
            tally.n_rows += part.entry.n_rows
            tally.n_drafts += n_drafts
            tally.n_margins += n_drafts if reply.margin is not None else 0
            tally.acts[part.act.value] += 1
            tally.acts["resyncs"] += bool(part.entry.req_flags & RESYNC)
            tally.acts["requests"] += part.entry.req_flags & (NEW_GEN | RESYNC) == NEW_GEN
            tally.statuses[EntryStatus(status.status).name] += 1
        tally.round_trip_us.append(took_us)
        tally.worker_us.append(reply.head.worker_us)
        tally.wire_us.append(max(0.0, took_us - reply.head.recv_to_send_us))

    def _wrong(self, step_id: int, reason: str) -> DemoError:
        return DemoError(f"{self._endpoint}: round {step_id}: {reason}")


def _status_name(status: int) -> str:
    known = {known.value: known.name for known in FrameStatus}
    return known.get(status, f"unknown status {status}")
