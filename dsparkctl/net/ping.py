"""A request outside any session, and PINGs one behind the other with their round trips (§6.6, R39).

Decides what counts as lost, and when nobody is waited for any more. Refuses to know how a link is
made: whoever measures says how to dial. Pure standard library, so that it also runs on a Spark.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from dsparkctl.contract.codes import MAGIC, VERSION, Op
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.layout import pack
from dsparkctl.contract.records import AppHeader
from dsparkctl.net.ask import ask
from dsparkctl.net.transport import Deadline, Link, TransportError

Dial = Callable[[Deadline], Link]
"""A new link to the listener; TransportError when there is none before the deadline."""

_GIVE_UP_AFTER: Final = 10
"""Losses in a row after which nobody is waited for any more."""
_AFTER_A_LOSS_S: Final = 0.1
"""Pause before the next connection, so that a worker that starts again is not hammered."""


class Refused(Exception):  # noqa: N818 -- what happened
    """The peer answered, with another status than OK (§9.1)."""

    def __init__(self, endpoint: Endpoint, op: Op, status: int) -> None:
        super().__init__(f"{endpoint}: {op.name} was refused with status {status}")
        self.endpoint = endpoint
        self.op = op
        self.status = status


@dataclass
class Tally:
    """What became of the PINGs so far."""

    rtt_us: list[float] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """The reason of each loss."""

    @property
    def n_sent(self) -> int:
        return len(self.rtt_us) + len(self.lost)


@dataclass(frozen=True, slots=True)
class Course:
    """How to measure."""

    n: int
    pause_s: float
    """Between two PINGs."""
    payload_bytes: int
    """Zeros behind the PING, which the worker ignores (R13)."""
    timeout_s: float
    """For one answer."""


def request(link: Link, op: Op, body: bytes, timeout_s: float, seq: int = 1) -> bytes:
    """The body of the reply to one message outside any session (R1, R2, R39).

    TransportError when nothing usable came back, Refused when what came back is not OK.
    """
    head = pack(AppHeader(MAGIC, VERSION, op, seq, 0, len(body), 0, 0))
    reply = ask(link, [head, body], Deadline(timeout_s))
    if reply.header.status:
        raise Refused(link.endpoint, op, reply.header.status)
    return bytes(reply.body)


def measure(course: Course, dial: Dial, tally: Tally, *, until: Deadline | None = None) -> None:
    """Fill the tally, with a new connection after every loss; fewer PINGs when nobody seems to be
    there, or when `until` has passed. TransportError when there is no first connection."""
    payload = bytes(course.payload_bytes)
    link: Link | None = dial(Deadline(course.timeout_s))
    n_in_a_row = 0
    try:
        for seq in range(1, course.n + 1):
            if until is not None and not until.left_s:
                return
            if seq > 1:
                time.sleep(max(course.pause_s, _AFTER_A_LOSS_S) if n_in_a_row else course.pause_s)
            try:
                link = link or dial(Deadline(course.timeout_s))
                started_s = time.perf_counter()
                request(link, Op.PING, payload, course.timeout_s, seq)
                tally.rtt_us.append((time.perf_counter() - started_s) * 1e6)
                n_in_a_row = 0
            except TransportError as error:
                link = None
                tally.lost.append(str(error))
                n_in_a_row += 1
                if n_in_a_row == _GIVE_UP_AFTER:
                    return
    finally:
        if link is not None:
            link.close()
