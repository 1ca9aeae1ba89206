"""The circuit breaker (§10, v1.8): when rank 0 stops asking a worker that keeps failing.

Decides from a count of engine rounds alone: no clock. Refuses to know why a round failed and
whether a connection stands.

```
 closed ── `trip` failures in a row ──▶ open ── `cooldown` rounds pass ──▶ probing
   ▲                                     ▲                                  │   │
   └──────────── success ────────────────┼──────────────────────────────────┘   │
                                         └──────────── failure ─────────────────┘
```
Failure in round s: s + 1 … s + cooldown are silent, and s + cooldown + 1 may send (C10). A neutral
round changes nothing in any state; a prefill append that fails while probing opens it again (C11).
"""

from enum import Enum
from typing import NamedTuple

from dsparkctl.state.verdict import Verdict


class State(Enum):
    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"


class Breaker(NamedTuple):
    """`trip` 0: never opens."""

    trip: int
    cooldown: int
    state: State = State.CLOSED
    n_failed: int = 0
    """Failed attempts in a row, while closed."""
    n_silent: int = 0
    """Rounds that are still to pass without a STEP, while open."""

    def begun(self) -> tuple["Breaker", bool]:
        """An engine round begins, connected or not: the breaker in it, and whether it may send."""
        if self.state is not State.OPEN:
            return self, True
        if self.n_silent:
            return self._replace(n_silent=self.n_silent - 1), False
        return self._replace(state=State.PROBING), True

    def settled(self, verdict: Verdict) -> "Breaker":
        """The round that `begun` allowed has ended."""
        match verdict:
            case Verdict.NEUTRAL:
                return self
            case Verdict.SUCCESS:
                return Breaker(self.trip, self.cooldown)
        n_failed = self.n_failed + 1
        if self.trip and (self.state is State.PROBING or n_failed >= self.trip):
            return Breaker(self.trip, self.cooldown, State.OPEN, 0, self.cooldown)
        return self._replace(n_failed=n_failed)
