"""A deploy of the client to the Sparks: what the worker says, facts, plan, execution, proof.

Decides that the identity which the Sparks will demand is the one that a healthy worker has now, and
what counts as live after a restart: the variables in the processes of every rank, then a new
session and rising steps at the worker.
"""

import hashlib
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dsparkctl.config.engine import EngineSettings
from dsparkctl.config.fleet import Fleet
from dsparkctl.contract.identity import NO_MARKOV
from dsparkctl.rollout import env_file
from dsparkctl.rollout.gate import fault_of, stats_of
from dsparkctl.rollout.host import Host, HostError, Hosts
from dsparkctl.rollout.own_wheel import own_wheel
from dsparkctl.rollout.render import RenderError
from dsparkctl.rollout.sparks import Client, Live, SparkFacts, live, look
from dsparkctl.rollout.wheelhouse import OURS, Wheel, read_wheel, read_wheelhouse

_LOOK_EVERY_S: Final = 1.0


class NotLive(HostError):  # noqa: N818 -- what is seen
    """The engine was restarted, and does not run as it should; nothing is taken back."""


@dataclass(frozen=True, slots=True)
class SparkDeploy:
    """The client of one fleet."""

    fleet: Fleet
    worker: Host
    hosts: Hosts
    """The ranks' hosts by name."""
    say: Callable[[str], None]

    @property
    def engine(self) -> EngineSettings:
        if self.fleet.engine is None:
            raise RenderError("engine: missing; expected where the engine's ranks run")
        return self.fleet.engine

    def worker_stats(self) -> dict[str, Any]:
        """STATS of a worker that is fit to draft; HostError otherwise."""
        stats = stats_of(self.worker, self.fleet.worker.admin[0])
        if fault := fault_of(stats, None):
            raise HostError(f"{self.worker.name}: the worker answers, but {fault}")
        return stats

    def client(self, stats: Mapping[str, Any], wheelhouse: Path | None, cache: Path) -> Client:
        """What the Sparks are to have, by what the worker says of itself."""
        markov = str(stats["markov_identity"])
        values = env_file.variables(
            self.fleet,
            str(stats["drafter_identity"]),
            None if markov == NO_MARKOV.hex() else markov,
        )
        wheel = self._wheel(wheelhouse, cache)
        return Client(self.fleet, wheel, package_digest(wheel.path), values)

    def facts(self, names: Sequence[str]) -> list[SparkFacts]:
        return [look(self.hosts[name], self.engine) for name in names]

    def lives(self, client: Client) -> list[Live]:
        """Every variable on every rank, as the running processes have it."""
        return [row for one in self.facts(self.engine.ranks) for row in live(one, client.values)]

    def prove(self, client: Client, before: Mapping[str, Any]) -> None:
        """After a restart: live on both ranks, a new session, rising steps; NotLive otherwise."""
        end_s = time.monotonic() + self.engine.start_timeout_s
        bad: list[Live] = []
        self.say(f"waiting up to {self.engine.start_timeout_s:g} s for the engine's first drafts")
        while True:
            bad = [row for row in self.lives(client) if row.state != "live"]
            stats = stats_of(self.worker, self.fleet.worker.admin[0])
            is_new = stats["hellos"] > before["hellos"] or stats["pid"] != before["pid"]
            is_same = stats["pid"] == before["pid"]
            rises = stats["steps"] > (before["steps"] if is_same else 0)
            if not bad and is_new and rises:
                return
            if time.monotonic() > end_s:
                break
            time.sleep(_LOOK_EVERY_S)
        if bad:
            row = bad[0]
            raise NotLive(
                f"{row.host}: {row.name} is {row.state} in the running engine: {row.found}, "
                f"expected {row.wanted}"
            )
        if not is_new:
            raise NotLive(
                f"{self.worker.name}: the engine's client opened no session at the worker"
            )
        raise NotLive(
            f"{self.worker.name}: a session but no step since; steps rise with the first request: "
            "send one, then look at dsparkctl stats"
        )

    def _wheel(self, wheelhouse: Path | None, cache: Path) -> Wheel:
        folder = wheelhouse or self.fleet.release.wheelhouse
        if folder is not None:
            return next(one for one in read_wheelhouse(folder) if one.name == OURS)
        place = cache / "client"
        place.mkdir(parents=True, exist_ok=True)
        return read_wheel(own_wheel(place))


def package_digest(wheel: Path) -> str:
    """Over the files that the wheel installs, as `on_host/engine_facts.py` counts them."""
    found = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if name.split("/")[0] in (OURS, "dspark_worker") and not name.endswith("/"):
                found.update(f"{name} {hashlib.sha256(archive.read(name)).hexdigest()}\n".encode())
    return found.hexdigest()
