"""A deploy of the worker from beginning to end: lock, facts, wheels, plan, execution, history.

Decides the order, and what stops it before anything is changed. The plan that a dry run returns is
the object that is executed otherwise.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from dsparkctl.config.fleet import Fleet
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.rollout import history
from dsparkctl.rollout.execute import Outcome, Result, execute
from dsparkctl.rollout.facts import WorkerFacts, gather
from dsparkctl.rollout.host import Host, HostError, Hosts
from dsparkctl.rollout.layout import Layout
from dsparkctl.rollout.lock import Lease, held, who
from dsparkctl.rollout.plan import Plan, Step, Tell
from dsparkctl.rollout.recipe import Recipe
from dsparkctl.rollout.release import Release
from dsparkctl.rollout.render import worker_config, worker_unit
from dsparkctl.rollout.wheelhouse import Wheel, read_wheelhouse, refused_by_host
from dsparkctl.rollout.wheels_from_index import make_wheelhouse

_ROOM: Final = 7
"""An installed wheel takes some three to five times its size; upload and copy lie beside it."""


class PreflightError(HostError):
    """The host is not fit for what was asked; nothing was changed (exit code 3)."""


@dataclass(frozen=True, slots=True)
class Deploy:
    """The worker of one fleet, on its host."""

    fleet: Fleet
    host: Host
    tell: Tell
    lock_wait_s: float = 0.0

    @property
    def layout(self) -> Layout:
        return Layout(self.fleet.release.root)

    @property
    def admin(self) -> Endpoint:
        return self.fleet.worker.admin[0]

    def locked(self, command: str, *, is_dry: bool = False) -> AbstractContextManager[Lease | None]:
        """The host's lock; a dry run needs none."""
        if is_dry:
            return nullcontext()
        return held(
            self.host,
            self.layout,
            command=command,
            lease_s=self.fleet.release.lock_lease_s,
            wait_s=self.lock_wait_s,
            say=self.tell.say,
        )

    def facts(self) -> WorkerFacts:
        return gather(self.host, self.fleet)

    def plan(self, facts: WorkerFacts, wheelhouse: Path | None, cache: Path, command: str) -> Plan:
        """What has to be done; PreflightError, WheelhouseError or RenderError otherwise."""
        config, unit = worker_config(self.fleet), worker_unit(self.fleet)
        self._preflight(facts)
        wheels = self._wheels(facts, wheelhouse, cache)
        if reason := refused_by_host(wheels, facts):
            raise PreflightError(f"{facts.host}: {reason}")
        n_bytes = _ROOM * sum(wheel.n_bytes for wheel in wheels)
        release = Release(wheels, config, unit, facts.python_tag)
        plan = Recipe(self.fleet).deploy(facts, release, datetime.now(UTC), command)
        if any(step.key == "build" for step in plan.steps) and facts.free_bytes < n_bytes:
            raise PreflightError(
                f"{facts.host}: {self.layout.root} has {facts.free_bytes / 1e9:.1f} GB left, a "
                f"release needs {n_bytes / 1e9:.1f} GB; make room or move release.root"
            )
        return plan

    def run(self, plan: Plan, lease: Lease | None, hosts: Hosts | None = None) -> Outcome:
        """Execute, and write down every step; `hosts` has whatever else the plan names.

        LockLost before a step that would be done under somebody else's lock.
        """

        def record(step: Step, result: Result, said: str) -> None:
            entry = {"who": who(), "command": plan.command, "plan": plan.hash, "step": step.key}
            entry |= {"host": step.host}
            entry |= {"release": plan.release, "result": str(result), "said": said}
            history.append(self.host, self.layout, entry)

        def before(step: Step) -> None:
            if lease is not None:
                lease.check()
            self.tell.say(f"{step.host}: {step.title}")

        every = hosts or {self.host.name: self.host}
        return execute(plan, every, tell=self.tell, before=before, record=record)

    def _wheels(
        self, facts: WorkerFacts, wheelhouse: Path | None, cache: Path
    ) -> tuple[Wheel, ...]:
        folder = wheelhouse or self.fleet.release.wheelhouse
        if folder is None:
            self.tell.say("collecting wheels for the worker's host")
            folder = make_wheelhouse(cache, facts)
        return read_wheelhouse(folder)

    def _preflight(self, facts: WorkerFacts) -> None:
        for is_bad, reason in self._faults(facts):
            if is_bad:
                raise PreflightError(f"{facts.host}: {reason}")

    def _faults(self, facts: WorkerFacts) -> list[tuple[bool, str]]:
        there = dict(facts.paths)
        worker, python = self.fleet.worker, self.fleet.release.python
        return [
            (facts.python < (3, 11), f"{python} is {facts.python[0]}.{facts.python[1]}; the worker "
             "needs Python 3.11 or newer (release.python)"),
            (not facts.has_venv or not facts.has_ensurepip,
             f"{python} makes no venv with pip: apt-get install python3-venv there"),
            (there.get("checkpoint") != "folder",
             f"{worker.checkpoint} is no folder there: dsparkctl deploy checkpoint DIR brings it"),
            (worker.receipt is not None and there.get("receipt") != "file",
             f"{worker.receipt} is missing there: dsparkctl deploy checkpoint DIR brings it"),
            (bool(facts.receipt_fault), f"{worker.receipt}: {facts.receipt_fault}"),
            (worker.markov is not None and there.get("markov") != "file",
             f"{worker.markov} is missing there: dsparkctl deploy checkpoint DIR brings it"),
        ]  # fmt: skip
