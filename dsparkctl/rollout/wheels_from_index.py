"""A wheelhouse made with pip, for the host's Python and platform instead of our own.

Decides what is asked of pip: wheels alone, pinned by the constraints that this distribution was
tested with. Which index it asks is pip's own configuration, as everywhere on this machine; a CUDA
build of torch is chosen there, or with a wheelhouse of one's own.
"""

import hashlib
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dsparkctl.rollout.facts import WorkerFacts
from dsparkctl.rollout.own_wheel import own_wheel, run_pip
from dsparkctl.rollout.wheelhouse import OURS, WheelhouseError

DOWNLOAD_TIMEOUT_S: Final = 3600
_CONSTRAINTS: Final = Path(__file__).parents[1] / "constraints.txt"
_MANYLINUX: Final = (17, 24, 26, 27, 28, 31, 34, 35, 36, 38, 39, 40)
"""glibc 2.x of the platform tags that wheels are published under."""


def make_wheelhouse(cache: Path, facts: WorkerFacts) -> Path:
    """A folder below `cache` with everything; WheelhouseError otherwise.

    Downloads are kept and used again while requirements, constraints and platform stay; our own
    wheel is made anew each time.
    """
    platforms = platform_tags(facts)
    with tempfile.TemporaryDirectory() as scratch:
        wheel = own_wheel(Path(scratch))
        asked = [*platforms, facts.python_tag, _CONSTRAINTS.read_text(), *_requirements(wheel)]
        key = hashlib.sha256("\n".join(asked).encode()).hexdigest()[:16]
        folder = cache / f"wheels-{key}"
        folder.mkdir(parents=True, exist_ok=True)
        marker = folder / "downloaded"
        if not marker.is_file():
            run_pip(pip_argv(wheel, folder, platforms, facts), DOWNLOAD_TIMEOUT_S)
            marker.touch()
        for old in folder.glob(f"{OURS}-*.whl"):
            old.unlink()
        shutil.copy(wheel, folder)
    return folder


def _requirements(wheel: Path) -> list[str]:
    """What a wheel says that it needs."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    return sorted(line for line in lines if line.startswith(("Requires-Dist:", "Provides-Extra:")))


def pip_argv(wheel: Path, folder: Path, platforms: Sequence[str], facts: WorkerFacts) -> list[str]:
    """`pip download` of the worker's dependencies, and of pip itself, which hosts may lack."""
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
    argv += ["--dest", str(folder), "--constraint", str(_CONSTRAINTS)]
    argv += ["--implementation", "cp", "--python-version", ".".join(map(str, facts.python[:2]))]
    argv += [f"--platform={tag}" for tag in platforms]
    argv += [f"--abi={facts.python_tag}", "--abi=abi3", "--abi=none"]
    return [*argv, "pip", f"{OURS}[worker] @ {wheel.as_uri()}"]


def platform_tags(facts: WorkerFacts) -> list[str]:
    """The wheel platforms that the host takes, by its C library."""
    name, _, version = facts.libc.partition("-")
    major, _, minor = version.partition(".")
    if name != "glibc" or major != "2" or not minor.isdecimal():
        raise WheelhouseError(
            f"{facts.host}: its C library is {facts.libc or 'unknown'}, not glibc 2.x: "
            "give --wheelhouse DIR"
        )
    usable = [n for n in reversed(_MANYLINUX) if n <= int(minor)]
    older = [f"manylinux2014_{facts.machine}", f"linux_{facts.machine}"]
    return [f"manylinux_2_{n}_{facts.machine}" for n in usable] + older
