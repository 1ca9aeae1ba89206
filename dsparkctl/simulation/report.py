"""Many seeds in a row, and what they came to together."""

from collections import Counter
from collections.abc import Iterable, Iterator
from time import perf_counter
from typing import Any, NamedTuple

from dsparkctl.simulation.faults import Kind
from dsparkctl.simulation.run import ROUNDS, Failure, Result, run_seed


class Report(NamedTuple):
    """The sum of some seeds. `took_s` is the wall's time."""

    n_seeds: int
    n_rounds: int
    failures: list[Failure]
    faults: Counter[Kind]
    took_s: float

    @property
    def rounds_per_s(self) -> float:
        return self.n_rounds / self.took_s if self.took_s else 0.0

    def fields(self) -> dict[str, Any]:
        """For a program; every kind of fault is named, those that never happened with 0."""
        return {
            "seeds": self.n_seeds,
            "rounds": self.n_rounds,
            "broken": len(self.failures),
            "rounds_per_s": round(self.rounds_per_s, 1),
            "faults": {kind.value: self.faults[kind] for kind in Kind},
        }

    def line(self) -> str:
        """The same for a person."""
        faults = ", ".join(f"{kind.replace('_', ' ')} {self.faults[kind]}" for kind in Kind)
        return (
            f"seeds {self.n_seeds}, rounds {self.n_rounds}, broken {len(self.failures)}, "
            f"rounds/s {self.rounds_per_s:.0f}; {faults}"
        )


def results(seeds: Iterable[int], n_rounds: int = ROUNDS) -> Iterator[Result]:
    """One seed after the other; a broken one does not keep the next from running."""
    for seed in seeds:
        yield run_seed(seed, n_rounds)


def summed(found: Iterable[Result]) -> Report:
    """The report of results that are made while it reads them."""
    started_s = perf_counter()
    n_seeds = n_rounds = 0
    failures: list[Failure] = []
    faults: Counter[Kind] = Counter()
    for result in found:
        n_seeds += 1
        n_rounds += result.n_rounds
        faults += result.faults
        if result.failure is not None:
            failures.append(result.failure)
    return Report(n_seeds, n_rounds, failures, faults, perf_counter() - started_s)


def described(failure: Failure, n_rounds: int) -> str:
    """One line: where, what, and how to see it again."""
    seed = failure.seed
    return (
        f"seed {seed}, round {failure.n_round}: {failure.invariant}: {failure.detail}; "
        f"again: dsparkctl simulate --seeds {seed}:{seed + 1} --rounds {n_rounds}"
    )
