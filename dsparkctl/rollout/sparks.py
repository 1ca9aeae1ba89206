"""From facts to a plan for the engine's hosts: pure.

Decides what is written to each Spark, and that ranks are a unit: all stop before one starts, and
they start in their order, each once the one before is seen to be there: rank 0 holds the
rendezvous, and must not start again after another rank has joined it. Without `restart` nothing is
restarted, and what runs on keeps what it was started with.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from dsparkctl.config.engine import EngineSettings
from dsparkctl.config.fleet import Fleet
from dsparkctl.rollout import engines, env_file
from dsparkctl.rollout.acts import Folder, PutFile, Run, Switch, WaitUntil, Write
from dsparkctl.rollout.host import Host, HostError, Ran
from dsparkctl.rollout.plan import Act, Plan, Step
from dsparkctl.rollout.programs import ask
from dsparkctl.rollout.wheelhouse import Wheel

STAGE: Final = PurePosixPath("/opt/dspark-client")
"""Wheels on the Sparks, one folder each, of the login account."""


@dataclass(frozen=True, slots=True)
class Process:
    """One running process of the engine, and the variables that it was started with."""

    pid: int
    command: str
    variables: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SparkFacts:
    """One Spark."""

    host: str
    account: str = "root"
    env_text: str | None = None
    drop_in_text: str | None = None
    package_digest: str | None = None
    """Over the installed files of ours; None where there are none."""
    package_version: str = ""
    processes: tuple[Process, ...] = ()


def look(host: Host, engine: EngineSettings) -> SparkFacts:
    """Ask a Spark; HostError when it does not say."""
    extra = engines.drop_in(engine)
    asked = {
        "env_file": str(engine.env_file),
        "unit": engine.unit if engine.kind == "systemd" else None,
        "container": engine.container if engine.kind == "docker" else None,
        "process": engine.process,
        "python": str(engine.python or ""),
        "mount": str(engine.mount) if engine.mount else None,
        "drop_in": str(extra[0]) if extra else None,
    }
    answer = ask(host, "engine_facts", asked, as_root=True)
    try:
        return _facts(host.name, answer)
    except (KeyError, TypeError, ValueError) as error:
        raise HostError(f"{host.name}: facts that cannot be read: {error!r}"[:300]) from None


def _facts(host: str, answer: Mapping[str, Any]) -> SparkFacts:
    package = answer["package"] or {}
    return SparkFacts(
        host,
        str(answer["account"]),
        answer["env_text"],
        answer["drop_in_text"],
        package.get("digest"),
        str(package.get("version", "")),
        tuple(
            Process(int(one["pid"]), str(one["command"]), tuple(sorted(one["variables"].items())))
            for one in answer["processes"]
        ),
    )


@dataclass(frozen=True, slots=True)
class Live:
    """What became of one variable in the processes that run on one Spark."""

    host: str
    name: str
    state: str
    """live, stale, missing, extra"""
    wanted: str | None
    found: str | None


def live(facts: SparkFacts, wanted: Mapping[str, str]) -> list[Live]:
    """Each wanted variable, and each other of ours, as the engine's processes have it.

    A process that has none of ours is a helper of the engine, unless none has any.
    """
    ours = [dict(one.variables) for one in facts.processes]
    told = [one for one in ours if any(name.startswith(env_file.PREFIX) for name in one)]
    seen = told or ours
    found: list[Live] = []
    for name, value in wanted.items():
        values = {one.get(name) for one in seen} or {None}
        if values == {value}:
            found.append(Live(facts.host, name, "live", value, value))
        elif values == {None}:
            found.append(Live(facts.host, name, "missing", value, None))
        else:
            other = next((one for one in values if one not in (value, None)), None)
            found.append(Live(facts.host, name, "stale", value, other))
    extra = {
        name: value
        for one in seen
        for name, value in one.items()
        if name.startswith(env_file.PREFIX) and name not in wanted
    }
    return found + [Live(facts.host, n, "extra", None, v) for n, v in sorted(extra.items())]


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
        stale = [
            one.host
            for one in facts
            if one.processes and any(row.state != "live" for row in live(one, self.values))
        ]
        notes: tuple[str, ...] = ()
        is_down = any(not one.processes for one in facts)
        if restart and (steps or stale or is_down):
            steps += self._restart()
        elif not restart and (steps or stale):
            notes = (
                f"{', '.join(stale) or 'the Sparks'}: what runs there keeps what it was started "
                "with; --restart restarts all ranks",
            )
        return Plan(command, tuple(steps), notes=notes)

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

    def _restart(self) -> list[Step]:
        engine = self.engine
        stop, start = engines.stop(engine), engines.start(engine)
        order = [engine.ranks[rank] for rank in engine.start_order]
        steps: list[Step] = []
        if stop is not None:
            for host in reversed(order):
                acts: tuple[Act, ...] = (Run(stop, timeout_s=engine.stop_timeout_s), self._gone())
                steps.append(Step("stop", f"stop rank {engine.ranks.index(host)}", host, acts))
        if start is not None:
            for host in order:
                rank = engine.ranks.index(host)
                up: tuple[Act, ...] = (Run(start, timeout_s=engine.start_timeout_s), self._there())
                if rank == 0 and engine.rendezvous_port is not None:
                    up += (self._listens(engine.rendezvous_port),)
                steps.append(Step("start", f"start rank {rank}", host, up))
        return steps

    def _gone(self) -> WaitUntil:
        return WaitUntil(
            "the rank to be gone", self._state(), _is_gone, self.engine.stop_timeout_s, as_root=True
        )

    def _there(self) -> WaitUntil:
        return WaitUntil(
            "the rank to run", self._state(), _is_there, self.engine.start_timeout_s, as_root=True
        )

    def _state(self) -> tuple[str, ...]:
        match self.engine.kind:
            case "systemd":
                return ("systemctl", "is-active", str(self.engine.unit))
            case "docker":
                name = str(self.engine.container)
                return ("docker", "inspect", "--format", "{{.State.Running}}", name)
            case _:
                # A pattern that does not match the command which looks for it.
                text = self.engine.process
                return ("pgrep", "-f", f"[{text[0]}]{text[1:]}")

    def _listens(self, port: int) -> WaitUntil:
        return WaitUntil(
            f"rank 0 to listen on port {port}",
            ("cat", "/proc/net/tcp", "/proc/net/tcp6"),
            lambda ran: f":{port:04X} " in _listeners(ran),
            self.engine.start_timeout_s,
        )


def _is_gone(ran: Ran) -> bool:
    return ran.text in ("", "inactive", "failed", "unknown", "false") or ran.code != 0


def _is_there(ran: Ran) -> bool:
    return ran.code == 0 and ran.text not in ("", "false", "inactive", "failed")


def _listeners(ran: Ran) -> str:
    """The local addresses of listening sockets (state 0A of /proc/net/tcp)."""
    lines = (line.split() for line in ran.text.splitlines())
    return " ".join(f"{line[1]} " for line in lines if len(line) > 3 and line[3] == "0A")
