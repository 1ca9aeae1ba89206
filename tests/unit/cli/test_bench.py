"""`dsparkctl bench`: the arguments reach the worker's program as they are."""

import os
import sys
from collections.abc import Callable

import pytest

Cli = Callable[..., tuple[int, str, str]]


class Became(Exception):  # noqa: N818 -- what execv does instead of returning
    pass


@pytest.mark.parametrize(
    "args", [(), ("--help",), ("--synthetic", "tiny", "--json"), ("--requests=4", "-x")]
)
def test_every_argument_is_passed_through(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    calls: list[list[str]] = []

    def execv(_path: str, command: list[str]) -> None:
        calls.append(command)
        raise Became

    monkeypatch.setattr(os, "execv", execv)
    with pytest.raises(Became):
        cli("bench", "round", *args)
    assert calls == [[sys.executable, "-P", "-m", "dspark_worker", "bench", "round", *args]]
