"""What the running engines were really started with, against what was written: pure.

Decides what live, stale, missing and extra mean, and when a process runs code that is older than
what is installed. A file proves nothing: a process keeps the environment it was started with.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dsparkctl.rollout import env_file
from dsparkctl.rollout.spark_facts import Process, SparkFacts

SAME_TIME_S: Final = 1.0
"""Two clocks of one host, read one after the other, may be this far apart."""


class State(StrEnum):
    """What became of one variable in the processes that run on one Spark."""

    LIVE = "live"
    STALE = "stale"
    """It holds something else than the file."""
    MISSING = "missing"
    EXTRA = "extra"
    """One of ours that the file does not hold."""


@dataclass(frozen=True, slots=True)
class Live:
    """One variable on one Spark."""

    host: str
    name: str
    state: State
    wanted: str | None
    found: str | None

    def __str__(self) -> str:
        if self.state is State.EXTRA:
            return f"{self.host}: {self.name}={self.found} is extra: the file does not hold it"
        found = "not set" if self.found is None else self.found
        return f"{self.host}: {self.name} is {self.state}: {found}, expected {self.wanted}"


def told(facts: SparkFacts) -> tuple[Process, ...]:
    """The processes that count. One that has none of our variables is a helper of the engine (a
    shell, a resource tracker), unless none has any."""
    ours = tuple(
        one
        for one in facts.processes
        if any(name.startswith(env_file.PREFIX) for name, _ in one.variables)
    )
    return ours or facts.processes


def live(facts: SparkFacts, wanted: Mapping[str, str]) -> list[Live]:
    """Each wanted variable, and each other of ours, as the engine's processes have it; empty when
    no engine runs there."""
    seen = [dict(one.variables) for one in told(facts)]
    return [*_wanted(facts.host, seen, wanted), *_extra(facts.host, seen, wanted)] if seen else []


def _wanted(
    host: str, seen: Sequence[Mapping[str, str]], wanted: Mapping[str, str]
) -> Iterator[Live]:
    for name, value in wanted.items():
        values = {one.get(name) for one in seen}
        others = sorted(one for one in values if one not in (value, None))
        if values == {value}:
            yield Live(host, name, State.LIVE, value, value)
        elif others:
            yield Live(host, name, State.STALE, value, others[0])
        else:
            yield Live(host, name, State.MISSING, value, None)


def _extra(
    host: str, seen: Sequence[Mapping[str, str]], wanted: Mapping[str, str]
) -> Iterator[Live]:
    extra = {
        name: value
        for one in seen
        for name, value in one.items()
        if name.startswith(env_file.PREFIX) and name not in wanted
    }
    for name, value in sorted(extra.items()):
        yield Live(host, name, State.EXTRA, None, value)


def runs_older_code(facts: SparkFacts) -> bool:
    """A process began before the installed files came to be, so it runs what stood there before."""
    return facts.package_digest is not None and any(
        one.started_s < facts.package_came_s - SAME_TIME_S for one in told(facts)
    )


def faults(facts: SparkFacts, wanted: Mapping[str, str]) -> list[str]:
    """Why what runs on a Spark is not what is installed there, a line each; empty: it is, or
    nothing runs."""
    found = [str(row) for row in live(facts, wanted) if row.state is not State.LIVE]
    if runs_older_code(facts):
        found.append(f"{facts.host}: the engine runs since before this client was installed")
    return found
