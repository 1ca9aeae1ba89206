"""What the doctor says: one line a check, with what it saw and, where something is wrong, what to
do about it. Its order is how bad it is."""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from dsparkctl.exits import Exit


class Level(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    """It works, or may work, but not as it should."""
    FAIL = "fail"
    """A deploy, or the engine's first STEP, would fail on it."""


class Finding(NamedTuple):
    """One line."""

    host: str
    check: str
    level: Level
    saw: str
    todo: str = ""
    """A command or an edit; the doctor itself changes nothing."""


def ok(host: str, check: str, saw: str) -> Finding:
    return Finding(host, check, Level.OK, saw)


def warn(host: str, check: str, saw: str, todo: str) -> Finding:
    return Finding(host, check, Level.WARN, saw, todo)


def fail(host: str, check: str, saw: str, todo: str) -> Finding:
    return Finding(host, check, Level.FAIL, saw, todo)


SSH: str = "ssh"
"""The check without which a host has no others."""


def exit_code(findings: Iterable[Finding]) -> Exit:
    """4 when no host could be reached; 3 for any fail on one that could; 6 when some could not be
    reached and nothing else is wrong; else 0: a warning does not end a script."""
    found = list(findings)
    hosts = {one.host for one in found}
    unreached = {one.host for one in found if one.check == SSH and one.level is Level.FAIL}
    if unreached and unreached == hosts:
        return Exit.SSH
    if any(one.level is Level.FAIL and one.host not in unreached for one in found):
        return Exit.PREFLIGHT
    return Exit.PARTIAL if unreached else Exit.OK
