"""What is so on the worker's host, as values; read by one script that runs there.

Decides which questions are asked and how the answer is checked. Refuses to judge it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from dsparkctl.config.fleet import Fleet
from dsparkctl.contract.identity import drafter_identity
from dsparkctl.contract.receipt import MAX_RECEIPT_BYTES, ReceiptError, parse_receipt
from dsparkctl.rollout.host import Host, HostError
from dsparkctl.rollout.layout import Layout
from dsparkctl.rollout.programs import ask

FOLDERS: Final = (".", "incoming", "releases", "shared")
FACTS_TIMEOUT_S: Final = 300.0
"""Uploads of gigabytes may have to be hashed."""


class FactsError(HostError):
    """The host answered, but not what was asked."""


@dataclass(frozen=True, slots=True)
class ReleaseFacts:
    """One folder of `releases`."""

    id: str
    is_complete: bool
    digest: str = ""
    """Of its contents, by its manifest; empty when there is none."""
    version: str = ""
    """Of our distribution."""
    wheels: tuple[tuple[str, str], ...] = ()
    """Name and sha256 of each wheel it was built from and still holds."""
    altered: tuple[str, ...] = ()
    """Its files that are not what was installed."""
    unit_text: str = ""
    config_text: str = ""


@dataclass(frozen=True, slots=True)
class UnitFacts:
    """The worker's unit as systemd has it."""

    text: str | None = None
    active: str = "inactive"
    """active, activating, failed, inactive, …"""
    enabled: str = ""
    """enabled, disabled, or empty when there is no unit."""
    sub: str = ""
    n_restarts: int = 0
    result: str = ""


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """The worker's host."""

    host: str
    python: tuple[int, int, int] = (3, 11, 0)
    machine: str = "x86_64"
    libc: str = ""
    """`glibc-2.36`."""
    has_venv: bool = True
    has_ensurepip: bool = True
    account: str = "root"
    """Who logs in over ssh."""
    has_user: bool = False
    """Whether the worker's own account is there."""
    folders: tuple[tuple[str, str, str], ...] = ()
    """Name below the root, owner, mode."""
    releases: tuple[ReleaseFacts, ...] = ()
    incoming: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    """Uploads by release: name and sha256 of what is whole."""
    current: str | None = None
    previous: str | None = None
    healthy: tuple[str, ...] = ()
    """Releases that a gate found healthy, the latest last."""
    unit: UnitFacts = UnitFacts()
    free_bytes: int = 0
    paths: tuple[tuple[str, str | None], ...] = ()
    """Key of the worker's section, and what stands there: file, folder or None."""
    identity: str | None = None
    """Hex, by the receipt on the host; None when there is no receipt, or no good one."""
    receipt_fault: str = ""
    """What is wrong with the receipt."""

    def release(self, release_id: str | None) -> ReleaseFacts | None:
        return next((one for one in self.releases if one.id == release_id), None)

    @property
    def python_tag(self) -> str:
        """As wheels name it: cp311."""
        return f"cp{self.python[0]}{self.python[1]}"

    def but(self, **changes: Any) -> "WorkerFacts":
        """The same facts once something has changed."""
        return replace(self, **changes)


def gather(host: Host, fleet: Fleet) -> WorkerFacts:
    """Ask the host; HostError (FactsError) when it does not say."""
    layout, worker = Layout(fleet.release.root), fleet.worker
    paths = {"checkpoint": worker.checkpoint, "receipt": worker.receipt, "markov": worker.markov}
    asked = {
        "root": str(layout.root),
        "unit": str(layout.unit),
        "user": worker.user,
        "folders": FOLDERS,
        "paths": {key: str(path) for key, path in paths.items() if path is not None},
    }
    answer = ask(
        host,
        "worker_facts",
        asked,
        as_root=True,
        timeout_s=FACTS_TIMEOUT_S,
        python=str(fleet.release.python),
    )
    try:
        found = parse_facts(host.name, answer)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FactsError(f"{host.name}: facts that cannot be read: {error!r}"[:300]) from None
    return _with_identity(host, found, fleet)


def parse_facts(host: str, told: Mapping[str, Any]) -> WorkerFacts:
    """The script's answer as a value; ValueError, KeyError or TypeError when it is none."""
    unit = told["unit"]
    return WorkerFacts(
        host,
        _version(told["python"]),
        str(told["machine"]),
        str(told["libc"]),
        bool(told["has_venv"]),
        bool(told["has_ensurepip"]),
        str(told["account"]),
        bool(told["has_user"]),
        tuple((name, at[0], at[1]) for name, at in told["folders"].items() if at is not None),
        tuple(_release(one) for one in told["releases"]),
        tuple((name, _pairs(files)) for name, files in told["incoming"].items()),
        told["current"],
        told["previous"],
        tuple(map(str, told["healthy"])),
        UnitFacts(
            unit["text"],
            unit.get("ActiveState", "unknown"),
            unit.get("UnitFileState", ""),
            unit.get("SubState", ""),
            int(unit.get("NRestarts") or 0),
            unit.get("Result", ""),
        ),
        int(told["free_bytes"]),
        tuple(told["paths"].items()),
    )


def _release(told: Mapping[str, Any]) -> ReleaseFacts:
    manifest = told["manifest"]
    return ReleaseFacts(
        str(told["id"]),
        bool(told["is_complete"]),
        str(manifest.get("digest", "")),
        str(manifest.get("version", "")),
        _pairs(manifest.get("wheels") or {}),
        tuple(map(str, told["altered"])),
        told["unit_text"] or "",
        told["config_text"] or "",
    )


def _version(told: Any) -> tuple[int, int, int]:
    major, minor, micro = map(int, told)
    return major, minor, micro


def _pairs(told: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((str(name), str(value)) for name, value in told.items()))


def _with_identity(host: Host, facts: WorkerFacts, fleet: Fleet) -> WorkerFacts:
    """The receipt is read here by the code that reads receipts, not by a second one there."""
    if fleet.worker.receipt is None or dict(facts.paths).get("receipt") != "file":
        return facts
    argv = ("head", "-c", str(MAX_RECEIPT_BYTES + 1), "--", str(fleet.worker.receipt))
    data = host.check(argv, as_root=True).stdout
    try:
        return facts.but(identity=drafter_identity(parse_receipt(data).files).hex())
    except ReceiptError as error:
        return facts.but(receipt_fault=str(error))
