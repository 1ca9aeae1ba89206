"""A deploy of the client to the Sparks: what the worker says, facts, plan, execution, proof.

Decides that the identity which the Sparks will demand is the one that a healthy worker has now,
which must be the receipt's.
"""

import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dsparkctl.config.engine import EngineSettings
from dsparkctl.config.fleet import Fleet
from dsparkctl.contract.identity import NO_MARKOV
from dsparkctl.rollout import env_file
from dsparkctl.rollout.environ import faults
from dsparkctl.rollout.gate import fault_of, stats_of
from dsparkctl.rollout.host import Host, HostError, Hosts
from dsparkctl.rollout.own_wheel import own_wheel
from dsparkctl.rollout.plan import Plan, Step
from dsparkctl.rollout.proof import SeeDrafts
from dsparkctl.rollout.render import RenderError
from dsparkctl.rollout.spark_facts import SparkFacts, look
from dsparkctl.rollout.sparks import Client
from dsparkctl.rollout.wheelhouse import OURS, Wheel, read_wheel, read_wheelhouse

COMMAND: Final = "deploy spark"


@dataclass(frozen=True, slots=True)
class SparkDeploy:
    """The client of one fleet."""

    fleet: Fleet
    worker: Host
    hosts: Hosts
    """The ranks' hosts by name."""

    @property
    def engine(self) -> EngineSettings:
        if self.fleet.engine is None:
            raise RenderError("engine: missing; expected where the engine's ranks run")
        return self.fleet.engine

    def worker_stats(self, identity: str | None) -> dict[str, Any]:
        """STATS of a worker that is fit to draft; HostError otherwise.

        `identity` is the receipt's, as it lies on the worker's host (§6.7); None: there is none.
        """
        stats = stats_of(self.worker, self.fleet.worker.admin[0])
        if fault := fault_of(stats, identity):
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

    def plan(
        self,
        client: Client,
        facts: Sequence[SparkFacts],
        before: Mapping[str, Any],
        *,
        restart: bool,
    ) -> Plan:
        """What has to be done, and, where ranks restart, the proof that they draft."""
        plan = client.plan(facts, COMMAND, restart=restart)
        if not any(step.key == "start" for step in plan.steps):
            return plan
        admin, limit_s = self.fleet.worker.admin[0], self.engine.start_timeout_s
        see = SeeDrafts(admin, self.engine, before, self.hosts, limit_s)
        step = Step("drafts", "see it draft for the engine", self.worker.name, (see,))
        return plan.then(Plan(COMMAND, (step,)))

    def faults(self, client: Client) -> list[str]:
        """What runs on the Sparks and is not what is installed there, a line each."""
        facts = self.facts(self.engine.ranks)
        return [line for one in facts for line in faults(one, client.values)]

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
