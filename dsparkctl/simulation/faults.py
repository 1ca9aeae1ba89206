"""Which fault falls when: kinds, rates, and the weather that draws them.

Decides what goes wrong. Refuses to know how: links, worker and run do the harm, and count a kind
only when it has really been done. Each seed has its own weather, with some kinds left out, so that
rare pairs of faults meet without the others in between.
"""

import random
from collections import Counter
from enum import StrEnum
from typing import Final, NamedTuple

from dsparkctl.simulation.spoil import FAILURES


class Kind(StrEnum):
    """A kind of fault."""

    LATE = "late"
    """A request or a reply that takes longer than the round's deadline; requests arrive later."""
    LOST = "lost"
    CUT = "cut"
    """The connection ends within a request or a reply."""
    CORRUPTED = "corrupted"
    """One byte of a request or a reply, length prefix included."""
    REFUSED = "refused"
    """A reply with a value that §6.3 refuses."""
    STRAY = "stray"
    """A second reply behind the first (C22)."""
    FATAL = "fatal"
    """A frame status that disables remote drafting for good (§9.1)."""
    SLOW_DIAL = "slow_dial"
    DUPLICATE_CONNECTION = "duplicate_connection"
    REORDERED_CONNECTION = "reordered_connection"
    """An older connection reaches the worker after the newer one, and wins (§7.5)."""
    WORKER_RESTART = "worker_restart"
    SPARK_RESTART = "spark_restart"
    OUTAGE = "outage"
    """Parts of the way stop one by one, and come back in another order."""
    FAILING = "failing"
    """A worker that answers and keeps failing (§10)."""
    STALE_GENERATION = "stale_generation"
    """The worker's slot gets ahead of rank 0's generation (§9.2)."""
    KILL_SWITCH = "kill_switch"
    RESET = "reset"
    """Windows discarded by the admin listener (R39)."""
    PREEMPTION = "preemption"
    SLOT_REUSE = "slot_reuse"
    PREFIX_HIT = "prefix_hit"


class Part(StrEnum):
    """A part of the way that an outage can stop."""

    DIAL = "dial"
    REQUEST = "request"
    REPLY = "reply"
    WORKER = "worker"


BY_MESSAGE: Final = (
    Kind.LATE,
    Kind.LOST,
    Kind.CUT,
    Kind.CORRUPTED,
    Kind.REFUSED,
    Kind.STRAY,
    Kind.FATAL,
)
"""Kinds that wait for the next message."""

BY_DIAL: Final = (Kind.SLOW_DIAL, Kind.DUPLICATE_CONNECTION)
"""Kinds that wait for the next connection."""

RATES: Final = {
    Kind.LATE: 0.01,
    Kind.LOST: 0.006,
    Kind.CUT: 0.006,
    Kind.CORRUPTED: 0.012,
    Kind.REFUSED: 0.04,
    Kind.STRAY: 0.004,
    Kind.FATAL: 0.001,
    Kind.SLOW_DIAL: 0.006,
    Kind.DUPLICATE_CONNECTION: 0.006,
    Kind.REORDERED_CONNECTION: 0.003,
    Kind.WORKER_RESTART: 0.002,
    Kind.SPARK_RESTART: 0.0015,
    Kind.OUTAGE: 0.002,
    Kind.FAILING: 0.006,
    Kind.STALE_GENERATION: 0.004,
    Kind.KILL_SWITCH: 0.001,
    Kind.RESET: 0.008,
    Kind.PREEMPTION: 0.03,
    Kind.PREFIX_HIT: 0.5,
}
"""Chance per round; of a prefix hit, per request that is admitted. Slots are reused anyhow."""


class Failing(NamedTuple):
    """How the worker fails, and until which round."""

    how: str
    """One of `spoil.FAILURES`."""
    until_round: int


class Weather:
    """The faults of a seed, drawn round by round; `counts` holds those that happened."""

    def __init__(self, draw: random.Random) -> None:
        self.counts: Counter[Kind] = Counter()
        self.details: Counter[str] = Counter()
        """Refused values, failures and corrupted places by name."""
        self.draw = draw
        force = draw.choice((0.2, 1.0, 2.0, 3.0))
        self.rates = {kind: rate * force for kind, rate in RATES.items() if draw.random() < 0.75}
        self.rates[Kind.PREFIX_HIT] = RATES[Kind.PREFIX_HIT]
        self.is_calm = False
        """No fault falls any more."""
        self.message: Kind | None = None
        """Waits for the next message."""
        self.dial: Kind | None = None
        """Waits for the next connection."""
        self.down: set[Part] = set()
        self.failing: Failing | None = None
        self.n_round = 0
        self.switched_off_until = 0
        """The switch file exists before this round."""
        self._plan: list[tuple[int, Part, bool]] = []
        self._outage_hit = False
        drawn = [kind for kind in self.rates if kind not in (Kind.PREEMPTION, Kind.PREFIX_HIT)]
        self._kinds = drawn
        self._weights = [self.rates[kind] for kind in drawn]
        self._total = sum(self._weights)

    def happened(self, kind: Kind, detail: str = "") -> None:
        self.counts[kind] += 1
        if detail:
            self.details[f"{kind}: {detail}"] += 1

    def begin(self, n_round: int) -> Kind | None:
        """A round begins; a kind that somebody has to do at once, or None."""
        self.n_round = n_round
        if self._plan:
            self._move_outage(n_round)
        if self.failing is not None and n_round >= self.failing.until_round:
            self.failing = None
        if self.is_calm or self.draw.random() >= self._total:
            return None
        kind = self.draw.choices(self._kinds, self._weights)[0]
        if kind in BY_MESSAGE:
            self.message = kind
        elif kind in BY_DIAL:
            self.dial = kind
        elif kind is Kind.OUTAGE:
            self._plan_outage(n_round)
        elif kind is Kind.FAILING:
            self.failing = Failing(self.draw.choice(FAILURES), n_round + self.draw.randint(2, 40))
        elif kind is Kind.KILL_SWITCH:
            self.switched_off_until = n_round + self.draw.randint(1, 60)
        else:
            return kind
        return None

    def calm(self) -> None:
        """The faults end: every part of the way stands again."""
        self.is_calm = True
        self.message = self.dial = self.failing = None
        self.switched_off_until = 0
        self.down.clear()
        self._plan.clear()

    @property
    def is_switched_off(self) -> bool:
        return self.n_round < self.switched_off_until

    def outage_hit(self) -> None:
        """A part that is down has stopped something: an outage counts once."""
        if not self._outage_hit:
            self.happened(Kind.OUTAGE)
        self._outage_hit = True

    def _plan_outage(self, n_round: int) -> None:
        if self._plan:
            return
        self._outage_hit = False
        parts = self.draw.sample([*Part], self.draw.randint(1, len(Part)))
        at = n_round
        for part in parts:
            self._plan.append((at, part, True))
            at += self.draw.randint(0, 3)
        at += self.draw.randint(1, 25)
        for part in self.draw.sample(parts, len(parts)):
            self._plan.append((at, part, False))
            at += self.draw.randint(0, 3)

    def _move_outage(self, n_round: int) -> None:
        while self._plan and self._plan[0][0] <= n_round:
            _, part, stops = self._plan.pop(0)
            (self.down.add if stops else self.down.discard)(part)
