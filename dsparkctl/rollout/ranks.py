"""Ranks are a unit: all stop before one starts, and they start in their order.

Decides the steps of a restart and when a rank is gone, up, open for others, or live. Rank 0 holds
the rendezvous and must not start again after another rank has joined it, so the next rank waits
until its port is seen to be open; and that port must be seen to be free before rank 0 starts, or
somebody else's listener would be taken for it. What is observed decides, never an exit code.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from dsparkctl.config.engine import EngineSettings
from dsparkctl.rollout import engines
from dsparkctl.rollout.acts import Run, WaitTimedOut
from dsparkctl.rollout.environ import State, live, runs_older_code
from dsparkctl.rollout.host import Host, HostError
from dsparkctl.rollout.plan import Act, Step, Tell
from dsparkctl.rollout.programs import ask
from dsparkctl.rollout.spark_facts import SparkFacts, told

GRACE_S: Final = 10.0
"""A launcher may end and hand over, or set variables late; what lasts longer than this stays so."""


JOURNAL_LINES: Final = 20


class RankLost(HostError):  # noqa: N818 -- what is seen
    """What is waited for will not come: the rank ended, or runs with something else."""


class Verdict(NamedTuple):
    """What one look says."""

    is_so: bool
    saw: str
    """For a person, in a few words."""
    never: str = ""
    """Why it will never be so, if it still holds in a while."""


Rule = Callable[[SparkFacts], Verdict]


def saw(facts: SparkFacts) -> str:
    """What runs there."""
    box = f"container {facts.container[:12]}, " if facts.container else ""
    n = len(facts.processes)
    return f"{box}{n or 'no'} process{'' if n == 1 else 'es'} of the engine"


def gone(facts: SparkFacts, port: int | None = None) -> Verdict:
    """No process is left, and nobody holds the port of the rendezvous."""
    if facts.is_up or port is None:
        return Verdict(not facts.is_up, saw(facts))
    held = f"somebody listens on port {port} still"
    return Verdict(not facts.listens, held if facts.listens else saw(facts))


def up(facts: SparkFacts, before: str | None) -> Verdict:
    """It runs; a container is another than `before`, since one keeps its environment for life."""
    if facts.is_up and before is not None and facts.container == before:
        return Verdict(
            False,
            saw(facts),
            f"container {before[:12]} was started again, not made anew, and keeps its old "
            "environment; engine.start has to create it (docker run, or compose up "
            "--force-recreate)",
        )
    return Verdict(facts.is_up, saw(facts))


def opened(facts: SparkFacts, port: int) -> Verdict:
    """Rank 0 runs and its rendezvous can be joined."""
    if not facts.is_up:
        return Verdict(False, saw(facts), f"it ended before it opened port {port}")
    words = f"{saw(facts)}, {'an open' if facts.listens else 'no open'} port {port}"
    return Verdict(facts.listens, words)


def alive(facts: SparkFacts, wanted: Mapping[str, str]) -> Verdict:
    """Its processes have exactly the variables that were written, and the installed code.

    A variable that is missing may yet come, when a launcher hands over; another value will not go.
    """
    if not facts.is_up:
        return Verdict(False, saw(facts), "the engine ended again")
    bad = [row for row in live(facts, wanted) if row.state is not State.LIVE]
    if bad:
        words = str(bad[0]).removeprefix(f"{facts.host}: ")
        is_late = all(row.state is State.MISSING for row in bad)
        return Verdict(False, words, "" if is_late else words)
    if runs_older_code(facts):
        return Verdict(False, "older code", "it runs since before this client was installed")
    return Verdict(True, saw(facts))


@dataclass(frozen=True, slots=True)
class WaitForRank:
    """An act: look again and again until a rule is content; never for ever, and not for nothing."""

    what: str
    """"rank 0 to be gone"."""
    engine: EngineSettings
    rule: Rule
    timeout_s: float
    port: int | None = None
    has_code: bool = False
    """Look at the installed files too."""
    interval_s: float = 1.0
    grace_s: float = GRACE_S

    def apply(self, host: Host, tell: Tell) -> None:
        tell.say(f"{host.name}: waiting up to {self.timeout_s:g} s for {self.what}")
        try:
            self._wait(host)
        except (RankLost, WaitTimedOut):
            show_journal(host, self.engine, tell)
            raise

    def _wait(self, host: Host) -> None:
        end_s = time.monotonic() + self.timeout_s
        never, since_s = "", 0.0
        while True:
            verdict, now_s = self.rule(self._look(host)), time.monotonic()
            if verdict.is_so:
                return
            if verdict.never != never:
                never, since_s = verdict.never, now_s
            if never and now_s - since_s >= min(self.grace_s, self.timeout_s):
                raise RankLost(f"{host.name}: waited for {self.what}: {never}")
            if now_s >= end_s:
                raise WaitTimedOut(
                    f"{host.name}: waited {self.timeout_s:g} s in vain for {self.what}; last "
                    f"seen: {verdict.saw}"
                )
            time.sleep(min(self.interval_s, max(0.0, end_s - now_s)))

    def _look(self, host: Host) -> SparkFacts:
        asked = engines.processes(self.engine) | {"port": self.port}
        if self.has_code:
            asked |= engines.files(self.engine)
        return told(host.name, ask(host, "engine_facts", asked, as_root=True))

    def __str__(self) -> str:
        return f"wait at most {self.timeout_s:g} s for {self.what}"


def show_journal(host: Host, engine: EngineSettings, tell: Tell) -> None:
    """What the rank said last, for whoever has to know why; a journal that cannot be read must not
    hide what happened."""
    argv = engines.journal(engine, JOURNAL_LINES)
    if argv is None:
        return
    try:
        ran = host.run(argv, as_root=True)
    except HostError as error:
        tell.say(str(error))
        return
    # docker hands on what the engine wrote to stderr as such.
    for line in (ran.stdout + ran.stderr).decode("utf-8", "replace").splitlines()[-JOURNAL_LINES:]:
        tell.say(f"{host.name}: journal: {line[:400]}")


def restart(
    engine: EngineSettings, facts: Mapping[str, SparkFacts], wanted: Mapping[str, str]
) -> list[Step]:
    """Stop all, the last to start first; start each; then see each of them live.

    RenderError when nobody has said how this kind is stopped and started.
    """
    stop, start = engines.stop(engine), engines.start(engine)
    order = [engine.ranks[rank] for rank in engine.start_order]
    return [
        *(_stopped(engine, host, stop, facts.get(host)) for host in reversed(order)),
        *(_started(engine, host, start, facts.get(host)) for host in order),
        *(_seen_live(engine, host, wanted) for host in order),
    ]


def _stopped(
    engine: EngineSettings, host: str, stop: engines.Command, facts: SparkFacts | None
) -> Step:
    rank = engine.ranks.index(host)
    port = engine.rendezvous_port if rank == 0 else None
    acts = list[Act]()
    # docker has nothing to stop, and says so with an error, where no container is.
    is_there = engine.kind != "docker" or facts is None or facts.container is not None
    if is_there:
        acts.append(Run(stop, timeout_s=engine.stop_timeout_s))
    what = f"rank {rank} to be gone" + (f", and port {port} to be free" if port else "")
    acts.append(
        WaitForRank(what, engine, lambda seen: gone(seen, port), engine.stop_timeout_s, port)
    )
    remove = engines.remove(engine)
    if remove is not None and is_there:
        acts.append(Run(remove))
    return Step("stop", f"stop rank {rank}", host, tuple(acts))


def _started(
    engine: EngineSettings, host: str, start: engines.Command, facts: SparkFacts | None
) -> Step:
    rank, limit_s = engine.ranks.index(host), engine.start_timeout_s
    before = facts.container if facts else None
    acts: list[Act] = [
        Run(start, timeout_s=limit_s),
        WaitForRank(f"rank {rank} to run", engine, lambda seen: up(seen, before), limit_s),
    ]
    port = engine.rendezvous_port
    if rank == 0 and port is not None:
        what = f"rank 0 to listen on port {port}"
        acts.append(WaitForRank(what, engine, lambda seen: opened(seen, port), limit_s, port))
    return Step("start", f"start rank {rank}", host, tuple(acts))


def _seen_live(engine: EngineSettings, host: str, wanted: Mapping[str, str]) -> Step:
    rank = engine.ranks.index(host)
    wait = WaitForRank(
        f"rank {rank} to run with what was written",
        engine,
        lambda seen: alive(seen, wanted),
        engine.start_timeout_s,
        has_code=True,
    )
    return Step("live", f"read the environment of rank {rank}", host, (wait,))
