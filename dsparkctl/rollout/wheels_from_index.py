"""A wheelhouse made with pip, for the host's Python and platform instead of our own.

Decides what is asked of pip: wheels alone, pinned by the constraints that this distribution was
tested with. Which index it asks is pip's own configuration, as everywhere on this machine; a CUDA
build of torch is chosen there, or with a wheelhouse of one's own.
"""

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dsparkctl.rollout.facts import WorkerFacts
from dsparkctl.rollout.own_wheel import own_wheel, run_pip, source_tree
from dsparkctl.rollout.wheelhouse import OURS, WheelhouseError

DOWNLOAD_TIMEOUT_S: Final = 3600
_MANYLINUX: Final = (17, 24, 26, 27, 28, 31, 34, 35, 36, 38, 39, 40)
"""glibc 2.x of the platform tags that wheels are published under."""


def make_wheelhouse(cache: Path, facts: WorkerFacts) -> Path:
    """A folder below `cache` with everything; WheelhouseError otherwise.

    Downloads are kept and used again while constraints and platform stay; our own wheel is made
    anew each time.
    """
    constraints = constraints_file()
    platforms = platform_tags(facts)
    asked = "\n".join([*platforms, facts.python_tag, constraints.read_text()])
    folder = cache / f"wheels-{hashlib.sha256(asked.encode()).hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{OURS}-*.whl"):
        old.unlink()
    wheel = own_wheel(folder)
    marker = folder / "downloaded"
    if not marker.is_file():
        run_pip(pip_argv(wheel, folder, constraints, platforms, facts), DOWNLOAD_TIMEOUT_S)
        marker.touch()
    return folder


def pip_argv(
    wheel: Path, folder: Path, constraints: Path, platforms: Sequence[str], facts: WorkerFacts
) -> list[str]:
    """`pip download` of the worker's dependencies, and of pip itself, which hosts may lack."""
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
    argv += ["--dest", str(folder), "--constraint", str(constraints)]
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


def constraints_file() -> Path:
    """constraints.txt of the source tree, or its copy in the wheel."""
    tree = source_tree()
    path = tree / "constraints.txt" if tree else Path(__file__).parents[1] / "constraints.txt"
    if not path.is_file():
        raise WheelhouseError(f"{path}: missing; give --wheelhouse DIR")
    return path
