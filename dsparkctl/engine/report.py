"""What a run, or a phase of it, came to: rounds, tokens a target step, accepted drafts, times.

Decides what is counted. A draft is accepted when the target's own choice was the same, also where
the request ended before it. Refuses to know how it is shown.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from dsparkctl.client.fallback import Outcome
from dsparkctl.engine.engine import Round


class Tally:
    """Sums over rounds; `num_spec` is N."""

    def __init__(self, num_spec: int) -> None:
        self.n_rounds = 0
        self.n_steps = 0
        """Times that the target sampled for a request: once a request and round."""
        self.n_tokens = 0
        """That it sampled: one a step, and the accepted drafts."""
        self.n_drafted = 0
        self.accepted = [0] * num_spec
        """Entries whose draft at this position was accepted."""
        self.outcomes: Counter[Outcome] = Counter()
        self.round_ms: list[float] = []
        self.propose_ms: list[float] = []
        self.engine_ms: list[float] = []
        """Rounds without their `propose`."""

    def add(self, done: Round) -> None:
        self.n_rounds += 1
        self.n_drafted += done.n_drafted
        self.outcomes[done.outcome] += 1
        self.round_ms.append(done.round_s * 1e3)
        self.propose_ms.append(done.propose_s * 1e3)
        self.engine_ms.append((done.round_s - done.propose_s) * 1e3)
        for sampled, _ in done.verified:
            self.n_steps += bool(sampled)
            self.n_tokens += len(sampled)
            for j in range(len(sampled) - 1):
                self.accepted[j] += 1

    @property
    def tokens_per_step(self) -> float:
        """1.0 is what the target does by itself; 0.0 before it sampled anything."""
        return self.n_tokens / self.n_steps if self.n_steps else 0.0

    @property
    def acceptance_per_position(self) -> list[float]:
        """Its sum is the mean number of accepted drafts of an entry that got drafts."""
        return [n / self.n_drafted if self.n_drafted else 0.0 for n in self.accepted]

    @property
    def fallbacks(self) -> dict[str, int]:
        """Rounds without drafts by reason, under the names of the client's counters."""
        return {
            outcome.counter: n
            for outcome, n in sorted(self.outcomes.items())
            if outcome > Outcome.APPENDED
        }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and largest, in the values' unit; empty when there are none."""
    ordered = sorted(values)
    n = len(ordered)
    at = {"p50": n // 2, "p99": n * 99 // 100, "max": n - 1}
    return {name: round(ordered[i], 2) for name, i in at.items()} if n else {}


def tally_facts(tally: Tally) -> dict[str, Any]:
    """The part of the report that every tally can give."""
    return {
        "rounds": tally.n_rounds,
        "drafted_requests": tally.n_drafted,
        "accepted": sum(tally.accepted),
        "acceptance_per_position": [round(a, 6) for a in tally.acceptance_per_position],
        "tokens_per_step": round(tally.tokens_per_step, 3),
        "fallbacks": tally.fallbacks,
    }
