"""Runs the command line in this process."""

from collections.abc import Callable

import pytest

from dsparkctl.cli.app import run


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`cli("identity", "receipt", path)` gives exit code, stdout and stderr."""

    def call(*args: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run([str(arg) for arg in args])
        return (code, *capsys.readouterr())

    return call
