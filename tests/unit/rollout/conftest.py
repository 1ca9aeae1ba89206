"""The programs that are sent to hosts, run here as they run there."""

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import pytest

Program = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run_program() -> Program:
    """Run `on_host/NAME.py` with a JSON argument; constants of it may be given other values."""

    def run(name: str, asked: dict[str, Any], **constants: object) -> tuple[int, str, str]:
        source = files("dsparkctl.rollout.on_host").joinpath(f"{name}.py").read_text()
        for constant, value in constants.items():
            lines = source.splitlines()
            at = next(i for i, line in enumerate(lines) if line.startswith(f"{constant} = "))
            lines[at] = f"{constant} = {value!r}"
            source = "\n".join(lines)
        done = subprocess.run(
            [sys.executable, "-I", "-", json.dumps(asked)],
            input=source,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stdout, done.stderr

    return run
