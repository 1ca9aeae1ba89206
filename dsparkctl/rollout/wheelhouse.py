"""A folder of wheels from which a host without internet can install the worker.

Decides what makes one usable: our own wheel, torch, and no file that this host's pip would refuse.
Refuses to know how it came to be (`wheels_from_index`), and what torch was built for: the operator
chooses the wheels, and the host's doctor says whether torch sees the device.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dsparkctl.rollout.facts import WorkerFacts

OURS: Final = "dsparkctl"
MAX_WHEELS: Final = 500
_WHEEL: Final = re.compile(
    r"(?P<name>[A-Za-z0-9_.]+)-(?P<version>[A-Za-z0-9_.!+]+)(-\d[^-]*)?"
    r"-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<platform>[^-]+)\.whl"
)


class WheelhouseError(Exception):
    """Wheels that the worker cannot be installed from; one line that says what to do."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """One file of a wheelhouse."""

    path: Path
    sha256: str
    n_bytes: int

    @property
    def file(self) -> str:
        return self.path.name

    @property
    def name(self) -> str:
        """The distribution's, normalised."""
        return _parts(self.file)["name"].lower().replace("_", "-").replace(".", "-")

    @property
    def version(self) -> str:
        return _parts(self.file)["version"]

    @property
    def python_tag(self) -> str:
        """cp311, py3, …"""
        return _parts(self.file)["python"]


def read_wheelhouse(folder: Path) -> tuple[Wheel, ...]:
    """The folder's wheels by name, hashed; WheelhouseError when a worker needs others."""
    try:
        paths = sorted(folder.glob("*.whl"))
    except OSError as error:
        raise WheelhouseError(f"{folder}: cannot be read: {error.strerror}") from None
    if not folder.is_dir():
        raise WheelhouseError(f"{folder}: no folder of wheels")
    if len(paths) > MAX_WHEELS:
        raise WheelhouseError(f"{folder}: more than {MAX_WHEELS} wheels")
    wheels = tuple(read_wheel(path) for path in paths)
    for needed in (OURS, "torch"):
        own = [wheel for wheel in wheels if wheel.name == needed]
        if len(own) != 1:
            many = f"{len(own)} wheels" if own else "no wheel"
            raise WheelhouseError(f"{folder}: {many} of {needed}; a worker needs exactly one")
    return wheels


def our_version(wheels: Sequence[Wheel]) -> str:
    return next(wheel.version for wheel in wheels if wheel.name == OURS)


def refused_by_host(wheels: Sequence[Wheel], facts: WorkerFacts) -> str:
    """Why pip on the host would not take a wheel, or an empty string."""
    for wheel in wheels:
        parts = _parts(wheel.file)
        platform, python, abi = parts["platform"], parts["python"], parts["abi"]
        if platform != "any" and not platform.endswith(f"_{facts.machine}"):
            return f"{wheel.file} is for {platform}, the host is {facts.machine}"
        ours = {facts.python_tag, f"py{facts.python[0]}", f"py{facts.python[0]}{facts.python[1]}"}
        if abi != "abi3" and ours.isdisjoint(python.split(".")):
            return f"{wheel.file} is for {python}, the host's Python is {facts.python_tag}"
    return ""


def read_wheel(path: Path) -> Wheel:
    """One wheel, hashed; WheelhouseError when it is none."""
    if not _WHEEL.fullmatch(path.name):
        raise WheelhouseError(f"{path}: not a wheel's name")
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        n_bytes = path.stat().st_size
    except OSError as error:
        raise WheelhouseError(f"{path}: cannot be read: {error.strerror}") from None
    return Wheel(path, digest.hexdigest(), n_bytes)


def _parts(file: str) -> dict[str, str]:
    found = _WHEEL.fullmatch(file)
    assert found is not None, file
    return found.groupdict()
