"""`dsparkctl worker`: the arguments reach the worker as they are."""

import os
import sys
from collections.abc import Callable

import pytest

Cli = Callable[..., tuple[int, str, str]]


class Became(Exception):  # noqa: N818 -- what execv does instead of returning
    pass


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    calls: list[tuple[str, list[str]]] = []

    def execv(path: str, args: list[str]) -> None:
        calls.append((path, args))
        raise Became

    monkeypatch.setattr(os, "execv", execv)
    return calls


@pytest.mark.parametrize(
    "args",
    [
        ("serve",),
        ("serve", "--help"),
        ("serve", "--checkpoint", "DIR", "--json", "--admin", "tcp://[::1]:1"),
        ("serve", "--listen=tcp://127.0.0.1:0", "--max-slots", "2", "-v"),
        ("replay", "CASE", "--mode", "f32", "--out", "x y"),
        ("replay", "--mode", "f32", "CASE"),
        ("replay", "CASE", "--", "-x"),
        ("replay", "-h"),
    ],
)
def test_every_argument_is_passed_through(
    cli: Cli, started: list[tuple[str, list[str]]], args: tuple[str, ...]
) -> None:
    with pytest.raises(Became):
        cli("worker", *args)
    command = [sys.executable, "-P", "-m", "dspark_worker", *args]
    assert started == [(sys.executable, command)]
