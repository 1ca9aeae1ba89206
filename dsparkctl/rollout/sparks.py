"""From facts to a plan for the engine's hosts: pure.

Decides what is written to each Spark and what is taken away again. Without `restart` nothing is
restarted, and what runs on keeps what it was started with; how ranks restart is `ranks`'.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import PurePosixPath
from typing import Final

from dsparkctl.config.engine import EngineSettings
from dsparkctl.config.fleet import Fleet
from dsparkctl.rollout import engines, env_file, ranks
from dsparkctl.rollout.acts import Folder, PutFile, Remove, Run, Switch, Write
from dsparkctl.rollout.environ import faults
from dsparkctl.rollout.host import HostError
from dsparkctl.rollout.plan import Act, Plan, Step
from dsparkctl.rollout.spark_facts import Process, SparkFacts
from dsparkctl.rollout.wheelhouse import OURS, Wheel

STAGE: Final = PurePosixPath("/opt/dspark-client")
"""Wheels on the Sparks, one folder each, of the login account."""
_HEX: Final = "[0-9a-f]"


@dataclass(frozen=True, slots=True)
class Client:
    """What the Sparks are to have."""

    fleet: Fleet
    wheel: Wheel
    package_digest: str
    """Of the wheel's files, as `SparkFacts.package_digest`."""
    values: Mapping[str, str]
    """The variables."""

    @property
    def engine(self) -> EngineSettings:
        assert self.fleet.engine is not None
        return self.fleet.engine

    def plan(self, facts: Sequence[SparkFacts], command: str, *, restart: bool) -> Plan:
        """Files on every Spark of `facts` first, then, if asked, the ranks together."""
        steps = [step for one in facts for step in self._files(one)]
        is_old = bool(steps) or any(faults(one, self.values) for one in facts)
        if restart and (is_old or not all(one.is_up for one in facts)):
            by_host = {one.host: one for one in facts}
            return Plan(command, (*steps, *ranks.restart(self.engine, by_host, self.values)))
        return Plan(command, tuple(steps), notes=tuple(self._notes(facts)) if is_old else ())

    def _notes(self, facts: Sequence[SparkFacts]) -> Iterator[str]:
        """What is installed and not live, without a restart."""
        running = [one.host for one in facts if one.is_up]
        if running:
            yield (
                f"{', '.join(running)}: installed, not live: what runs there keeps what it was "
                "started with; --restart restarts all ranks"
            )
        if len(running) < len(facts):
            rest = ", ".join(one.host for one in facts if not one.is_up)
            yield f"{rest}: installed, not live: no engine runs there"

    def _files(self, facts: SparkFacts) -> Iterator[Step]:
        engine, acts = self.engine, list[Act]()
        if facts.package_digest != self.package_digest:
            yield self._install(facts)
        wanted = env_file.write(self.values)
        if facts.env_text != wanted.decode():
            acts.append(Run(("mkdir", "-p", "--", str(engine.env_file.parent))))
            acts.append(Write(engine.env_file, wanted))
        extra = engines.drop_in(engine)
        if extra is not None and facts.drop_in_text != extra[1].decode():
            acts.append(Run(("mkdir", "-p", "--", str(extra[0].parent))))
            acts += [Write(*extra), Run(("systemctl", "daemon-reload"))]
        if acts:
            diff = "\n".join(
                difflib.unified_diff(
                    (facts.env_text or "").splitlines(),
                    wanted.decode().splitlines(),
                    f"{engine.env_file} (now)",
                    f"{engine.env_file} (then)",
                    lineterm="",
                )
            )
            title = "write the client's variables"
            yield Step("variables", title, facts.host, tuple(acts), diff=diff)

    def _install(self, facts: SparkFacts) -> Step:
        engine, here = self.engine, STAGE / self.wheel.sha256[:16]
        wheel = here / self.wheel.file
        acts: list[Act] = [
            Folder(STAGE, facts.account),
            Run(("mkdir", "-p", "--", str(here)), as_root=False),
            PutFile(self.wheel.path, wheel, self.wheel.sha256),
        ]
        if engine.python is not None:
            pip = (str(engine.python), "-m", "pip", "install", "--quiet", "--no-deps")
            more = (
                "--no-index",
                "--no-cache-dir",
                "--force-reinstall",
                "--root-user-action=ignore",
            )
            acts.append(Run((*pip, *more, str(wheel)), timeout_s=300.0))
        elif engine.mount is not None:
            unpacked = PurePosixPath(f"{engine.mount}.{self.wheel.sha256[:16]}")
            acts += [
                Folder(unpacked),
                Run(("python3", "-m", "zipfile", "-e", str(wheel), str(unpacked))),
                Switch(engine.mount, unpacked.name),
            ]
        title = (
            f"install the client {self.wheel.version} (it was {facts.package_version or 'none'})"
        )
        return Step("install", title, facts.host, tuple(acts))


def undeploy(fleet: Fleet, facts: Sequence[SparkFacts], command: str) -> Plan:
    """Take the client and its variables away again; the engine then drafts for itself.

    HostError while an engine runs on it: it would lose files that it may yet read.
    """
    engine = fleet.engine
    if engine is None:
        return Plan(command)
    using = [one.host for one in facts if any(_is_told(process) for process in one.processes)]
    if using:
        raise HostError(
            f"{', '.join(using)}: the engine runs on this client; stop it on every rank first"
        )
    found = tuple(step for one in facts for step in _removed(engine, fleet, one))
    notes: tuple[str, ...] = ()
    if found and engine.kind != "systemd":
        notes = (f"take {engine.env_file} out of your own start command; it is gone",)
    return Plan(command, found, notes=notes)


def _is_told(process: Process) -> bool:
    return any(name.startswith(env_file.PREFIX) for name, _ in process.variables)


def _removed(engine: EngineSettings, fleet: Fleet, facts: SparkFacts) -> Iterator[Step]:
    extra, acts = engines.drop_in(engine), list[Act]()
    if extra is not None and facts.drop_in_text is not None:
        # First: a unit whose EnvironmentFile is missing does not start.
        acts += [Remove(extra[0]), Run(("systemctl", "daemon-reload"))]
    if facts.env_text is not None:
        acts.append(Remove(engine.env_file))
    if facts.package_digest is not None:
        acts += _uninstalled(engine)
    if acts:
        acts += [Remove(fleet.policy.switch_file), Remove(STAGE)]
        yield Step("undeploy", "remove the client and its variables", facts.host, tuple(acts))


def _uninstalled(engine: EngineSettings) -> list[Act]:
    if engine.mount is None:
        pip = (str(engine.python), "-m", "pip", "uninstall", "--quiet", "--yes")
        return [Run((*pip, "--root-user-action=ignore", OURS), timeout_s=300.0)]
    above, name = str(engine.mount.parent), escape(engine.mount.name)
    unpacked = ("find", above, "-maxdepth", "1", "-type", "d", "-name", name + "." + _HEX * 16)
    return [
        # Without -r: a folder that somebody made there himself is not ours to remove.
        Run(("rm", "-f", "--", str(engine.mount))),
        Run((*unpacked, "-exec", "rm", "-rf", "--", "{}", "+")),
    ]
