"""How long rank 0 waits before it tries to connect again (§10, C1): 1 s, doubling up to 30 s.

Decides only when the next attempt may be made. Refuses to know the clock and what an attempt is.
"""

from typing import Final, NamedTuple

FIRST_S: Final = 1.0
LONGEST_S: Final = 30.0


class Backoff(NamedTuple):
    """When the next attempt is allowed, and how long the wait after it would be."""

    next_at_s: float
    delay_s: float

    def allows(self, now_s: float) -> bool:
        return now_s >= self.next_at_s

    def failed(self, now_s: float) -> "Backoff":
        """The attempt at `now_s` came to nothing, or the connection it made is lost (C2)."""
        return Backoff(now_s + self.delay_s, min(2 * self.delay_s, LONGEST_S))

    def succeeded(self) -> "Backoff":
        """A HELLO was accepted: the next loss waits the shortest time again."""
        return Backoff(self.next_at_s, FIRST_S)


RESTED: Final = Backoff(float("-inf"), FIRST_S)
"""Before the first attempt, which waits for nothing."""
