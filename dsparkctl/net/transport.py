"""What a carrier is: one request out, one reply in, one deadline, three errors (§5, C26).

Decides nothing of how bytes travel. Refuses to know what a message says.
"""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.layout import Buffer


class TransportError(Exception):
    """Nothing usable came back; one line that names the endpoint."""


class TimedOut(TransportError):  # noqa: N818 -- what happened, as the rounds read it
    """The deadline passed before the connection stood, or before the whole reply was there."""


class Broken(TransportError):  # noqa: N818
    """No connection, a lost one, or bytes on it that no reply of the contract begins with."""


class Oversize(TransportError):  # noqa: N818
    """Longer than the other side said that it takes; nothing was sent."""


class NotInThisBuild(TransportError):  # noqa: N818
    """An endpoint whose transport cannot be used here; the line says what to install."""


class Deadline:
    """One absolute end for send and whole reply together, however many calls they take (C26).

    `now` counts seconds from anywhere and never goes back.
    """

    __slots__ = ("_end_s", "_now", "timeout_s")

    def __init__(self, timeout_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self.timeout_s = timeout_s
        self._now = now
        self._end_s = now() + timeout_s

    @property
    def left_s(self) -> float:
        """Seconds that are left; 0.0 when none are."""
        return max(0.0, self._end_s - self._now())


class Link(Protocol):
    """One connection, one outstanding request (§5)."""

    @property
    def endpoint(self) -> Endpoint:
        """Where it leads."""

    def exchange(self, parts: Sequence[Buffer], deadline: Deadline) -> memoryview:
        """Send the buffers as one message, return its reply (AppHeader and body).

        The view holds until the next exchange. After a TransportError the link is closed, so that
        a late reply lands nowhere (§7.5); whether the peer saw the request is then unknown.
        """

    def check(self) -> None:
        """Broken, with the link closed, when the peer is gone or has sent what nobody asked for.

        Looks at what has arrived and waits for nothing (C22).
        """

    def close(self) -> None:
        """Give the connection up; a second time does nothing."""
