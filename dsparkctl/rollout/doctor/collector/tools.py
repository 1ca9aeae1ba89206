"""Running a command, and reading a small file, within bounds."""

from __future__ import annotations

import os
import subprocess
from typing import NamedTuple

MAX_TEXT = 1 << 20


class Said(NamedTuple):
    """How a command ended; code 127 when there is no such command, 124 when it took too long."""

    code: int
    out: str
    err: str

    @property
    def reason(self) -> str:
        """The last line it said, for a person."""
        lines = [line.strip() for line in (self.out + "\n" + self.err).splitlines() if line.strip()]
        return (lines[-1] if lines else f"exit code {self.code}")[:300]


def run(argv: list[str], timeout_s: float) -> Said:
    """The command in the C locale, with the folders in which administrators' tools lie."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin:/sbin"
    env = {**os.environ, "LC_ALL": "C", "PATH": path}
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            env=env,
            check=False,
        )
    except FileNotFoundError:
        return Said(127, "", f"{argv[0]}: no such command")
    except OSError as error:
        return Said(126, "", f"{argv[0]}: {error.strerror}")
    except subprocess.TimeoutExpired:
        return Said(124, "", f"{argv[0]}: took longer than {timeout_s:g} s")
    return Said(done.returncode, _text(done.stdout), _text(done.stderr))


def read(path: str) -> str | None:
    """The file's text without its last line break; None when there is no such file."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 -- the kernel's files are small
            return _text(file.read(MAX_TEXT)).rstrip("\n")
    except OSError:
        return None


def _text(data: bytes) -> str:
    return data[:MAX_TEXT].decode("utf-8", "replace")
