"""Breaker, backoff, and the ledger's marks, counted once more from what was seen (§7.1, §7.4, §10).

Written from the contract's sentences, one after the other, with round numbers instead of states.
"""


class BreakerRecount:
    """§10: consecutive failed attempts, and the rounds that must be silent."""

    def __init__(self, trip: int, cooldown: int) -> None:
        self.n_failed = 0
        self.last_silent_round = 0
        self.probe_is_due = False
        self._trip = trip
        self._cooldown = cooldown

    def is_open(self, n_round: int) -> bool:
        return n_round <= self.last_silent_round

    def failed(self, n_round: int) -> None:
        self.n_failed += 1
        if self._trip and (self.probe_is_due or self.n_failed >= self._trip):
            self.last_silent_round = n_round + self._cooldown
            self.probe_is_due = True
            self.n_failed = 0

    def succeeded(self) -> None:
        self.n_failed = 0
        self.probe_is_due = False


class BackoffRecount:
    """§10, C1: 1 s, doubling up to 30 s, from the end of each connection or attempt."""

    def __init__(self) -> None:
        self.next_at_s = 0.0
        self._wait_s = 1.0

    def ended(self, at_s: float) -> None:
        self.next_at_s = at_s + self._wait_s
        self._wait_s = min(2 * self._wait_s, 30.0)

    def greeted(self) -> None:
        self._wait_s = 1.0


class SlotRecount:
    """§7.1 and §7.4 for one slot."""

    def __init__(self, generation: int) -> None:
        self.owner = ""
        self.generation = generation
        self.is_dirty = False
        self.is_new = False

    def taken_by(self, owner: str) -> None:
        self.is_new = owner != self.owner
        if self.is_new:
            self.owner = owner
            self.generation = (self.generation + 1) % 2**32
            self.is_dirty = False
