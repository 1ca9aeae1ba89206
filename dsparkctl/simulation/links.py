"""A connection as rank 0 has it, and the trace of what was seen on the way (§5).

Behaves as `net.tcp` does: the same errors, one deadline, a closed link after each error. What
becomes of a message in between is the network's business.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol

from dsparkctl.contract.endpoint import Endpoint, parse_endpoint
from dsparkctl.contract.layout import Buffer
from dsparkctl.net.transport import Broken, Deadline, TransportError
from dsparkctl.simulation.world import Clock

ENDPOINT: Final = parse_endpoint("tcp://127.0.0.1:18620")


class Seen(Enum):
    """What a line of the trace is about."""

    DIAL = "dial"
    DIAL_FAILED = "dial failed"
    ASKED = "asked"
    """A message went out: `reply` is what came back, or None and `error`."""
    ENDED = "ended"
    """A connection of rank 0 ended."""


class Event(NamedTuple):
    """One line of the trace."""

    seen: Seen
    at_s: float
    request: bytes = b""
    reply: bytes | None = None
    error: type[TransportError] | None = None


class Carrier(Protocol):
    """What a connection asks of the network."""

    clock: Clock
    live: int
    """Number of the connection that the worker holds; 0: none."""

    def carry(self, link: "SimulatedLink", request: bytes, deadline: Deadline) -> bytes:
        """The reply to a whole request, or the error that rank 0 gets instead."""

    def saw(self, event: Event) -> None:
        """A line of the trace."""


class SimulatedLink:
    """One connection of rank 0. A `net.transport.Link`."""

    __slots__ = ("_network", "has_stray", "is_open", "is_slow", "number")

    def __init__(self, network: Carrier, number: int, *, is_slow: bool) -> None:
        self.number = number
        self.is_open = True
        self.has_stray = False
        self.is_slow = is_slow
        """The next exchange takes most of its time."""
        self._network = network

    @property
    def endpoint(self) -> Endpoint:
        return ENDPOINT

    def exchange(self, parts: Sequence[Buffer], deadline: Deadline) -> memoryview:
        network, request = self._network, b"".join(parts)
        reply, error = None, None
        try:
            self._look()
            reply = network.carry(self, request, deadline)
        except TransportError as failure:
            error = type(failure)
            raise
        finally:
            network.saw(Event(Seen.ASKED, network.clock.now_s, request, reply, error))
            if error is not None:
                self.close()
        return memoryview(reply)

    def check(self) -> None:
        try:
            self._look()
        except TransportError:
            self.close()
            raise

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._network.saw(Event(Seen.ENDED, self._network.clock.now_s))

    def _look(self) -> None:
        if not self.is_open:
            raise Broken("the connection was given up")
        if self.number != self._network.live:
            raise Broken("the peer closed the connection")
        if self.has_stray:
            raise Broken("bytes came that no request asked for")
