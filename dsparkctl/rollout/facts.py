"""What is so on the worker's host, as a value: the ground of a plan.

Decides what a plan may know. Looking is `on_host/worker_facts.py`'s; `after` facts are what a step
says the next one will find.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsparkctl.config.fleet import Fleet
from dsparkctl.rollout.host import Host, HostError
from dsparkctl.rollout.layout import UNIT
from dsparkctl.rollout.programs import ask


@dataclass(frozen=True, slots=True)
class PythonFacts:
    """The host's Python, for which wheels are chosen."""

    version: tuple[int, int]
    platform: str
    """As sysconfig says it: linux-x86_64."""
    libc: str
    """glibc-2.36"""
    has_venv: bool


@dataclass(frozen=True, slots=True)
class ReleaseFacts:
    """One folder below releases/."""

    id: str
    digest: str | None
    is_complete: bool
    is_healthy: bool


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """The worker's host."""

    has_systemd: bool
    python: PythonFacts | None
    has_account: bool
    has_root: bool
    releases: tuple[ReleaseFacts, ...]
    current: str | None
    previous: str | None
    unit_text: str | None
    is_enabled: bool
    active: str
    free_bytes: int
    missing_paths: tuple[str, ...]

    def release(self, name: str | None) -> ReleaseFacts | None:
        return next((one for one in self.releases if one.id == name), None)


def look(host: Host, fleet: Fleet, paths: Sequence[str]) -> WorkerFacts:
    """Ask the host; HostError when it does not answer."""
    answer = ask(
        host,
        "worker_facts",
        {
            "root": str(fleet.release.root),
            "unit": UNIT,
            "user": fleet.worker.user,
            "python": str(fleet.release.python),
            "paths": list(paths),
        },
        as_root=True,
    )
    try:
        return read_facts(answer)
    except (KeyError, TypeError, ValueError) as error:
        raise HostError(f"{host.name}: its facts are not what was asked for: {error!r}") from None


def read_facts(answer: Mapping[str, Any]) -> WorkerFacts:
    """The value in an answer; KeyError, TypeError or ValueError where it is none."""
    python = answer["python"]
    return WorkerFacts(
        has_systemd=bool(answer["has_systemd"]),
        python=None
        if python is None
        else PythonFacts(
            (int(python["version"][0]), int(python["version"][1])),
            str(python["platform"]),
            str(python["libc"]),
            bool(python["has_venv"]),
        ),
        has_account=bool(answer["has_account"]),
        has_root=bool(answer["has_root"]),
        releases=tuple(
            ReleaseFacts(
                str(one["id"]), one["digest"], bool(one["is_complete"]), bool(one["is_healthy"])
            )
            for one in answer["releases"]
        ),
        current=answer["current"],
        previous=answer["previous"],
        unit_text=answer["unit_text"],
        is_enabled=bool(answer["is_enabled"]),
        active=str(answer["active"]),
        free_bytes=int(answer["free_bytes"]),
        missing_paths=tuple(map(str, answer["missing_paths"])),
    )
