"""From `shim.c` to a library that lies beside it, built by the machine that will load it.

Decides the compiler's command and what a failure is called. The library names the sources that it
was built of, so that one which an upgrade left behind is told and never loaded. A library instead
of an extension module: it needs libfabric's headers, not Python's, and outlives a new Python.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
LIBRARY: Final = HERE / "_shim.so"

_SOURCES: Final = (HERE / "shim.h", HERE / "shim.c")
_TIMEOUT_S: Final = 120.0


class BuildError(Exception):
    """No library came of it; one line."""


def source_digest() -> str:
    """What a library built of these sources says of itself."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES)).hexdigest()[:32]


def build(target: Path = LIBRARY, env: Mapping[str, str] = os.environ) -> Path:
    """Compile; the library appears whole or not at all. `CC`, `CFLAGS`, `LDFLAGS` are heeded."""
    compiler = shlex.split(env.get("CC", "cc"))
    if not compiler or shutil.which(compiler[0]) is None:
        raise BuildError(f"no C compiler {' '.join(compiler)!r}: install gcc, or set CC")
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".building-") as folder:
            made = Path(folder) / "shim.so"
            _compile(_command(compiler, made, env))
            made.replace(target)
    except OSError as error:
        raise BuildError(f"{target.parent}: cannot be written to: {error.strerror}") from None
    return target


def _command(compiler: list[str], target: Path, env: Mapping[str, str]) -> list[str]:
    return [
        *compiler, "-std=gnu11", "-O2", "-g", "-fPIC", "-shared", "-Wall",
        f'-DDSF_SOURCES="{source_digest()}"', *shlex.split(env.get("CFLAGS", "")),
        str(HERE / "shim.c"), "-o", str(target), *shlex.split(env.get("LDFLAGS", "")), "-lfabric",
    ]  # fmt: skip


def _compile(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise BuildError(f"{command[0]} did not end within {_TIMEOUT_S:g} s") from None
    said = done.stderr.decode("utf-8", "replace")
    if not done.returncode:
        return
    if "rdma/fabric.h" in said or "-lfabric" in said:
        raise BuildError("libfabric is not there to build with: install libfabric-dev")
    first = next((line for line in said.splitlines() if "error" in line), said.strip())
    raise BuildError(f"{' '.join(command[:1])} failed: {first[:200]}")
