"""Two Sparks that behave: an engine that reads its env file when it starts, a port, a container.

A test double of hosts, for what runs in which order and what is seen of it. What each host is asked
is answered from its state, in the very form of `on_host/engine_facts.py`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dsparkctl.config.fleet import Fleet
from dsparkctl.rollout import engines, env_file
from dsparkctl.rollout.host import Ran
from dsparkctl.rollout.plan import Step
from dsparkctl.rollout.ranks import WaitForRank
from dsparkctl.rollout.spark_facts import Process, SparkFacts
from dsparkctl.rollout.sparks import Client
from dsparkctl.rollout.wheelhouse import Wheel
from tests.unit.rollout.doubles import RecordingHost

WHEEL = Wheel(Path("/w/dsparkctl-0.1.0-py3-none-any.whl"), "f" * 64, 1000)
PORT = 29501


def client(**engine: Any) -> Client:
    given = {"kind": "systemd", "ranks": ("a", "b"), "python": "/opt/vllm/bin/python",
             "unit": "vllm.service", "rendezvous_port": PORT}  # fmt: skip
    fleet = Fleet.model_validate(
        {
            "version": 1,
            "hosts": {"x": {}, "a": {}, "b": {}},
            "links": ({"host": "a", "bind": "10.0.0.2", "peer": "10.0.0.1"},),
            "worker": {"host": "x", "checkpoint": "/c", "receipt": "/c/R"},
            "engine": given | engine,
        },
        context={"folder": Path("/")},
    )
    return Client(fleet, WHEEL, "digest", env_file.variables(fleet, "ab" * 32, None))


def whole(wanted: Client, host: str, *processes: Process) -> SparkFacts:
    """A Spark that has everything."""
    extra = engines.drop_in(wanted.engine)
    return SparkFacts(
        host,
        "ops",
        env_file.write(wanted.values).decode(),
        extra[1].decode() if extra else None,
        "digest",
        "0.1.0",
        100.0,
        processes,
    )


def running(values: Mapping[str, str], started_s: float = 200.0) -> Process:
    return Process(7, "vllm serve", tuple(sorted(values.items())), started_s)


@dataclass
class Spark:
    """One rank's host and what may go wrong with it."""

    name: str
    values: Mapping[str, str]
    """What its env file holds."""
    log: list[str]
    """What happened on all hosts, in order."""
    opens: int | None = None
    """The port that its engine opens."""
    opens_never: bool = False
    dies_after: int | None = None
    """Looks that its engine outlives."""
    keeps_container: bool = False
    """The start command starts the old container again."""
    is_up: bool = True
    container: str | None = None
    port_held: bool = False
    """By somebody who is not the engine."""
    looks: int = field(default=0)
    started_s: float = field(default=50.0)

    def host(self) -> RecordingHost:
        return RecordingHost(self.name, self._answer)

    def _answer(self, argv: tuple[str, ...]) -> Ran | None:
        if "-I" in argv:
            return Ran(argv, 0, json.dumps(self._look(json.loads(argv[-1]))).encode(), b"")
        text = " ".join(argv)
        if "stop" in argv or text == "halt":
            self.log.append(f"{self.name} stop")
            self.is_up = False
        elif "start" in argv or text == "launch":
            self.log.append(f"{self.name} start")
            self.is_up, self.looks, self.started_s = True, 0, 200.0
            if self.container is not None and not self.keeps_container:
                self.container += "+"
        return None

    def _look(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.looks += 1
        if self.dies_after is not None and self.looks > self.dies_after:
            self.is_up = False
        one = {"pid": 7, "command": "vllm", "variables": dict(self.values), "started_s": 200.0}
        listens = self.port_held or (self.is_up and self.opens is not None and not self.opens_never)
        if asked.get("port") and listens and self.is_up:
            self.log.append(f"{self.name} listens")
        return {
            "account": "ops",
            "processes": [{**one, "started_s": self.started_s}] if self.is_up else [],
            "package": {"digest": "digest", "version": "0.1.0", "came_s": 100.0},
            "container": {"id": self.container} if self.container else None,
            "listens": listens,
        }


def quick(steps: list[Step]) -> list[Step]:
    """The same steps, looking without rest."""

    def faster(act: Any) -> Any:
        if isinstance(act, WaitForRank):
            return replace(act, interval_s=0.001, timeout_s=0.2, grace_s=0.02)
        return act

    return [replace(step, acts=tuple(map(faster, step.acts))) for step in steps]
