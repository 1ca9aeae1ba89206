"""Whether the engine drafts with the worker after a restart, as the worker itself tells (R37).

Decides what counts: another session than before, and a STEP within it. Nothing is dialled before
the engine's first request, so this needs traffic, and says so. A rank that ends meanwhile (a model
that does not load) ends the wait.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dsparkctl.config.engine import EngineSettings
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.rollout import engines
from dsparkctl.rollout.acts import WaitTimedOut
from dsparkctl.rollout.gate import NotAnswering, stats_of
from dsparkctl.rollout.host import Host, Hosts
from dsparkctl.rollout.plan import Tell
from dsparkctl.rollout.programs import ask
from dsparkctl.rollout.ranks import GRACE_S, RankLost, show_journal
from dsparkctl.rollout.spark_facts import told

LOOK_EVERY_S: Final = 1.0


def awaited(before: Mapping[str, Any], seen: Mapping[str, Any]) -> str:
    """What is still to come, by two STATS (§6.5); empty: drafts are made for the new engine.

    `last_seq` is 0 until a session's first STEP. Steps of the old engine's last moments count for
    nothing: they belong to the session of before.
    """
    n_before = before.get("steps", 0) if seen.get("pid") == before.get("pid") else 0
    if seen.get("session") in (None, 0, before.get("session")):
        return "no new session"
    if not seen.get("last_seq") or seen.get("steps", 0) <= n_before:
        return "a new session, but no STEP in it"
    return ""


@dataclass(frozen=True, slots=True)
class SeeDrafts:
    """An act on the worker's host: wait until the worker drafts for the engine that was started."""

    admin: Endpoint
    engine: EngineSettings
    before: Mapping[str, Any]
    """STATS from before the restart."""
    hosts: Hosts = field(repr=False)
    """The ranks' hosts."""
    timeout_s: float
    interval_s: float = LOOK_EVERY_S
    grace_s: float = GRACE_S

    def apply(self, host: Host, tell: Tell) -> None:
        tell.say(
            f"{host.name}: waiting up to {self.timeout_s:g} s for the engine's first drafts; they "
            "come with its first request: send one"
        )
        end_s = time.monotonic() + self.timeout_s
        down_since: dict[str, float] = {}
        while left := self._left(host):
            now_s = time.monotonic()
            self._see_ranks(now_s, down_since, tell)
            if now_s >= end_s:
                raise WaitTimedOut(
                    f"{host.name}: {left} within {self.timeout_s:g} s; every rank runs with its "
                    "variables, and dials with its first request: send one, then look at "
                    "dsparkctl stats"
                )
            time.sleep(min(self.interval_s, max(0.0, end_s - now_s)))

    def _left(self, host: Host) -> str:
        """A worker that says nothing for a moment may be at work."""
        try:
            return awaited(self.before, stats_of(host, self.admin))
        except NotAnswering as error:
            return str(error).removeprefix(f"{host.name}: ")

    def _see_ranks(self, now_s: float, down_since: dict[str, float], tell: Tell) -> None:
        for name in self.engine.ranks:
            asked = engines.processes(self.engine)
            if told(name, ask(self.hosts[name], "engine_facts", asked, as_root=True)).is_up:
                down_since.pop(name, None)
            elif now_s - down_since.setdefault(name, now_s) >= self.grace_s:
                show_journal(self.hosts[name], self.engine, tell)
                raise RankLost(
                    f"{name}: the engine ended before it drafted; restart all ranks together "
                    "(deploy spark --restart) when it is known why"
                )

    def __str__(self) -> str:
        return f"wait at most {self.timeout_s:g} s for a new session and its first STEP"
