"""What the engine's side of a worker is, whatever carries it: a listener with one connection (§5).

Decides which carrier an endpoint asks for. Refuses to know how bytes travel and what they say.
"""

from collections.abc import Callable
from typing import Protocol

from dspark_worker.data_link import TcpListener
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.records import AppHeader


class Connection(Protocol):
    """The engine's connection: requests come one after the other, each gets one reply."""

    first_byte_at: float
    """When the message at hand began to come, and when it was whole; seconds of the clock."""
    received_at: float

    def fileno(self) -> int:
        """What becomes readable when something came."""

    def may_sleep(self) -> bool:
        """Whether whatever comes next makes `fileno` readable; asked before every sleep."""

    def receive(self) -> bool:
        """Take what came; True when a whole message is there.

        Raises ConnectionError when the peer is gone, WireError when the framing is lost.
        """

    def has_message(self) -> bool:
        """Whether a whole message is there without anything more being taken (R34)."""

    def message(self) -> tuple[AppHeader, memoryview]:
        """Its header and body; views that live until `send`. The body begins at a multiple of 64.
        WireError when it has no header of the contract."""

    def whole(self) -> memoryview:
        """Header and body as they came."""

    def send(self, reply: bytes) -> None:
        """The reply; OSError when the peer does not take it. The views are gone after it."""

    def consume(self) -> None:
        """Done with the message."""

    def close(self) -> None:
        """End the connection."""


class Listener(Protocol):
    """An address that is taken, and later listened on."""

    def prepare(self, max_message_bytes: int) -> None:
        """Memory for the longest message. OSError where there is none, ListenError where the
        carrier takes no such message."""

    def listen(self) -> Endpoint:
        """Begin; the endpoint with the port that was really taken. ListenError."""

    def fileno(self) -> int:
        """What becomes readable when somebody knocks."""

    def may_sleep(self) -> bool:
        """As a connection's."""

    def knocked(self) -> bool:
        """Whether somebody asks to be connected: of several, the newest."""

    def admit(self) -> Connection | None:
        """Connect it, or None when it is gone. The connection before it has been closed."""

    def close(self) -> None:
        """Give the address up."""


def bound(endpoint: Endpoint, now: Callable[[], float]) -> Listener:
    """The address is taken and refuses everybody until `listen`; ListenError when it cannot be.

    `now` counts seconds from anywhere.
    """
    if endpoint.scheme == "tcp":
        return TcpListener(endpoint, now)
    from dspark_worker.fabric_listener import FabricListener  # who speaks TCP needs no libfabric

    return FabricListener(endpoint, now)
