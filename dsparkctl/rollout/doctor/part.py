"""The part that a host plays in `dspark.yaml`, and what the collector must look at for it.

Decides which questions belong to which part. Refuses to judge an answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from dsparkctl.config.fleet import Fleet
from dsparkctl.config.worker import WorkerSection
from dsparkctl.rollout.layout import UNIT, Layout


@dataclass(frozen=True, slots=True)
class End:
    """A link as one of its two hosts sees it."""

    own: str
    """The host's own address on it."""
    peer: str
    other: str
    """The host at the other end; empty when dspark.yaml names none."""
    mtu: int
    rate_gbit: float


@dataclass(frozen=True, slots=True)
class Part:
    """One host."""

    host: str
    ends: tuple[End, ...] = ()
    worker: WorkerSection | None = None
    """Where this host runs it."""
    worker_python: str = ""
    release_root: str = ""
    wheels_bytes: int | None = None
    """Of the wheels that a release brings; None when nobody knows yet."""
    engine_python: str | None = None
    engine_mount: str | None = None
    rank: int | None = None
    scheme: str = "tcp"
    """Of the endpoint between worker and engine (§5)."""

    @property
    def wants_rdma(self) -> bool:
        return self.scheme == "o1rdma"

    @property
    def is_spark(self) -> bool:
        return self.rank is not None

    @property
    def ports(self) -> tuple[int, ...]:
        """What the worker listens on, the data port first."""
        if self.worker is None:
            return ()
        return tuple(dict.fromkeys(one.port for one in self.worker.listeners))

    @property
    def interpreters(self) -> tuple[str, ...]:
        named = (self.worker_python if self.worker else None, self.engine_python)
        return tuple(dict.fromkeys(one for one in named if one))

    @property
    def places(self) -> list[dict[str, str]]:
        """Where a dsparkctl may be installed here."""
        found = []
        if self.worker is not None:
            current = Layout(PurePosixPath(self.release_root)).current
            python = current / "venv" / "bin" / "python"
            found.append({"place": "worker", "python": str(python)})
        if self.engine_python is not None:
            found.append({"place": "client", "python": self.engine_python})
        if self.engine_mount is not None:
            mount = {"place": "client", "python": "python3", "folder": self.engine_mount}
            found.append(mount)
        return found

    def questions(self) -> dict[str, Any]:
        """The collector's argument."""
        worker = self.worker
        disks = [self.release_root, str(worker.checkpoint)] if worker else []
        return {
            "unit": UNIT if worker else None,
            "interpreters": self.interpreters,
            "installed": self.places,
            "disks": disks,
            "receipt": str(worker.receipt) if worker and worker.receipt else None,
            "checkpoint": str(worker.checkpoint) if worker else None,
            "ports": self.ports,
            "transfer_addresses": [end.own for end in self.ends] if worker else [],
            "links": [{"own": end.own, "peer": end.peer, "mtu": end.mtu} for end in self.ends],
        }


def part_of(fleet: Fleet, host: str) -> Part:
    """What `host` is there for."""
    engine = fleet.engine
    rank = engine.ranks.index(host) if engine and host in engine.ranks else None
    is_workers = fleet.worker.host == host
    wheelhouse = fleet.release.wheelhouse
    return Part(
        host=host,
        ends=tuple(_ends(fleet, host)),
        worker=fleet.worker if is_workers else None,
        worker_python=str(fleet.release.python),
        release_root=str(fleet.release.root),
        wheels_bytes=sum(one.stat().st_size for one in wheelhouse.glob("*.whl"))
        if is_workers and wheelhouse is not None
        else None,
        engine_python=str(engine.python) if engine and rank is not None and engine.python else None,
        engine_mount=str(engine.mount) if engine and rank is not None and engine.mount else None,
        rank=rank,
        scheme=fleet.worker.listen.scheme,
    )


def _ends(fleet: Fleet, host: str) -> Sequence[End]:
    found = []
    for link in fleet.links:
        if link.host == host:
            other = fleet.worker.host or ""
            found.append(End(link.bind, link.peer, other, link.mtu, link.rate_gbit))
        elif fleet.worker.host == host:
            found.append(End(link.peer, link.bind, link.host, link.mtu, link.rate_gbit))
    return found
