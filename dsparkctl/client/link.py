"""One connection to the worker, and its life: dial, HELLO, STEP, drop, back off (§5, §7.5, §10).

Decides when to connect and what a frame status means for the connection (§9.1, C1 to C6, C21).
Refuses to know slots, rounds and the breaker. The epoch counts accepted HELLOs: entries that were
built for another epoch are never sent, since the worker may hold other windows by now (v1.8).
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from dsparkctl.client.fallback import Outcome
from dsparkctl.contract.codes import CAN_MARGIN, CAN_TAPS_BF16, FrameStatus
from dsparkctl.contract.errors import WireError
from dsparkctl.contract.layout import Buffer
from dsparkctl.contract.messages import StepReply, hello_frame, parse_hello_reply, parse_step_reply
from dsparkctl.contract.records import Hello, HelloReply
from dsparkctl.net.ask import NotOurs, Reply, ask
from dsparkctl.net.transport import Deadline, Link, TimedOut, TransportError
from dsparkctl.state.backoff import RESTED
from dsparkctl.state.session import PROTO

log = logging.getLogger(__name__)

_SHORTEST_CONNECT_S: Final = 0.25
"""C6: what a connect and its HELLO may take at least, together, whatever a round's deadline."""

_FOR_GOOD: Final = {
    FrameStatus.BAD_VERSION: "install the same release on both sides",
    FrameStatus.IDENTITY_MISMATCH: "both sides must serve the same checkpoint and Markov file",
    FrameStatus.CONFIG_MISMATCH: "the worker's log says which value differs",
    FrameStatus.UNSUPPORTED_OP: "the endpoint must be a worker's data listener",
}
"""§9.1: what disables remote drafting until the engine starts again, and what to do."""

_SAY_HELLO: Final = (FrameStatus.NO_SESSION, FrameStatus.STALE_SEQ)
_ROUND_FAILED: Final = (FrameStatus.MALFORMED, FrameStatus.CAPACITY, FrameStatus.INTERNAL)


class Exchange(NamedTuple):
    """What came of a STEP: a reply whose sizes agree, or why there is none."""

    reply: StepReply | None
    outcome: Outcome
    reason: str
    soils_all: bool
    """Whether rank 0 can vouch for no slot any more, not just for those of the STEP (§7.4)."""


class WorkerLink:
    """Rank 0's one connection. Time comes from `clock` (seconds), sessions from `new_session`."""

    def __init__(
        self,
        hello: Hello,
        dial: Callable[[Deadline], Link],
        *,
        timeout_s: float,
        clock: Callable[[], float],
        new_session: Callable[[], int],
    ) -> None:
        self.hello = hello
        self.epoch = 0
        self.n_connections = 0
        self.disabled = ""
        """Why nothing will be sent any more, or empty."""
        self.last_error = ""
        self.has_margin = False
        self.worker_name = ""
        self.session = new_session()
        self.seq = 0
        """Of the last message, HELLO included (C8)."""
        self._dial = dial
        self._timeout_s = timeout_s
        self._clock = clock
        self._new_session = new_session
        self._backoff = RESTED
        self._link: Link | None = None
        self._is_greeted = False
        self._was_stale = False
        """The last STEP reply was STALE_SEQ."""

    @property
    def is_connected(self) -> bool:
        return self._link is not None and self._is_greeted

    def ready(self) -> bool:
        """Whether a STEP can be sent now; connects and says HELLO where one is due.

        Waits for at most `max(timeout, 250 ms)`, and never tries before the backoff is over.
        """
        if self.disabled:
            return False
        deadline = Deadline(max(self._timeout_s, _SHORTEST_CONNECT_S), self._clock)
        try:
            if self._link is not None:
                self._link.check()
            elif self._backoff.allows(self._clock()):
                self._link = self._dial(deadline)
                self.n_connections += 1
                self._is_greeted = False
            if self._link is not None and not self._is_greeted:
                self._greet(self._link, deadline)
        except TransportError as error:
            self.drop(str(error))
        return self.is_connected

    def step(self, build: Callable[[int, int], Sequence[Buffer]], epoch: int) -> Exchange:
        """One STEP and its reply, within the round's deadline (C26).

        `build(seq, session)` gives the message. Whatever fails, the caller learns it as a value.
        """
        if self._link is None or epoch != self.epoch or not self.is_connected:
            reason = f"built for connection {epoch}, this is {self.epoch}"
            return Exchange(None, Outcome.NEWER_CONNECTION, reason, False)
        try:
            parts = build(self._next_seq(), self.session)
            reply = ask(self._link, parts, Deadline(self._timeout_s, self._clock))
        except TimedOut as error:
            return self._failed(Outcome.TIMEOUT, str(error))
        except NotOurs as error:
            return self._failed(Outcome.BAD_REPLY, str(error))
        except TransportError as error:
            return self._failed(Outcome.TRANSPORT, str(error))
        return self._answered(reply)

    def refuse(self, reason: str) -> None:
        """The round refused a reply's values (§6.3): the connection is dropped."""
        self.drop(f"reply refused: {reason}")

    def renew_session(self) -> None:
        """§9.2: the worker's generations or seq are ahead of rank 0's; a new session drops them."""
        self.session, self.seq = self._new_session(), 0
        self._is_greeted = False

    def drop(self, reason: str) -> None:
        """Close the connection; the next attempt waits for the backoff (C1, C2)."""
        self.close()
        self._backoff = self._backoff.failed(self._clock())
        self._say(reason)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link, self._is_greeted = None, False

    # --- HELLO ------------------------------------------------------------------------------------

    def _greet(self, link: Link, deadline: Deadline) -> None:
        frame = hello_frame(self._next_seq(), self.session, self.hello)
        reply = ask(link, [frame], deadline)
        status = reply.header.status
        damage = ""
        try:
            answer = parse_hello_reply(reply.body)
        except WireError as error:
            answer, damage = None, str(error)
        if status in _FOR_GOOD:
            self._disable(FrameStatus(status), answer)
        elif status or answer is None:
            # C5: an answer that settles nothing is a failed connect, never a STEP and never a spin.
            self.drop(f"HELLO: {f'status {_name(status)}' if status else damage}")
        elif verdict := _unfit(self.hello, answer):
            self._disable(verdict, answer)
        else:
            self._backoff = self._backoff.succeeded()
            self._is_greeted = True
            self.last_error = ""
            self.epoch += 1
            self.has_margin = bool(answer.capabilities & CAN_MARGIN)
            self.worker_name = answer.worker_name.decode("ascii", "replace")
            name = ascii(self.worker_name)  # a peer's text must not write lines of its own
            log.info("connected to %s, %s, session %08x", link.endpoint, name, self.session)

    def _disable(self, status: FrameStatus, answer: HelloReply | None) -> None:
        differs = differences(self.hello, answer) if answer is not None else ""
        self.close()
        self.disabled = f"{status.name}: {differs or _FOR_GOOD[status]}"
        log.error("remote drafting is off until the engine starts again: %s", self.disabled)

    # --- STEP -------------------------------------------------------------------------------------

    def _answered(self, reply: Reply) -> Exchange:
        status = reply.header.status
        was_stale, self._was_stale = self._was_stale, status == FrameStatus.STALE_SEQ
        if not status:
            try:
                return Exchange(parse_step_reply(reply.body), Outcome.DRAFTED, "", False)
            except WireError as error:
                return self._failed(Outcome.BAD_REPLY, str(error))
        if status in _FOR_GOOD:
            self._disable(FrameStatus(status), None)
        elif status in _SAY_HELLO:
            self._is_greeted = False  # C3: on the same connection, before the next round's STEP
            if was_stale and self._was_stale:
                # The worker's last seq is out of reach, and HELLO does not lower it (R3).
                self.renew_session()
        elif status not in _ROUND_FAILED:
            return self._failed(Outcome.BAD_REPLY, f"frame status {status} is not a code of §9.1")
        reason = f"STEP: frame status {_name(status)}"
        self._say(reason)
        return Exchange(None, Outcome.FRAME_ERROR, reason, status in _SAY_HELLO)

    def _failed(self, outcome: Outcome, reason: str) -> Exchange:
        self.drop(reason)
        return Exchange(None, outcome, reason, True)

    # --- small things -----------------------------------------------------------------------------

    def _next_seq(self) -> int:
        self.seq += 1
        return self.seq

    def _say(self, reason: str) -> None:
        if reason != self.last_error:  # a worker that is gone for an hour says it once
            log.warning("%s", reason)
        self.last_error = reason


def differences(ours: Hello, theirs: HelloReply) -> str:
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
    if theirs.proto != PROTO:
        found.append(f"proto is {PROTO} here, {theirs.proto} there")
    if not theirs.capabilities & CAN_TAPS_BF16:
        found.append("the worker does not take TAPS_BF16")
    return "; ".join(found)


def _unfit(ours: Hello, theirs: HelloReply) -> FrameStatus | None:
    """An OK that cannot be one: identities differ (C18), or anything else does (C17, C18)."""
    if (ours.drafter_identity, ours.markov_identity) != (
        theirs.drafter_identity,
        theirs.markov_identity,
    ):
        return FrameStatus.IDENTITY_MISMATCH
    return FrameStatus.CONFIG_MISMATCH if differences(ours, theirs) else None


def _name(status: int) -> str:
    known = {code.value: code.name for code in FrameStatus}
    return known.get(status, str(status))
