"""`dsparkctl demo` in this process, where torch is imported once for all tests."""

from collections.abc import Callable
from typing import Any

import pytest

from dsparkctl.cli.app import run
from tests.e2e.demo_runs import report_of


@pytest.fixture
def demo(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`demo("--seed", 3)` gives exit code, stdout and stderr."""

    def call(*flags: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(["demo", *map(str, flags)])
        return (code, *capsys.readouterr())

    return call


@pytest.fixture
def report(demo: Callable[..., tuple[int, str, str]]) -> Callable[..., dict[str, Any]]:
    """The JSON of a run that must end well."""

    def call(*flags: object) -> dict[str, Any]:
        code, said, why = demo("--json", *flags)
        assert code == 0, why
        return report_of(said)

    return call
