"""How a command becomes root's: not at all, by sudo, or by sudo with a password on its stdin.

Decides it once per host, by trying. A password is asked for once, travels on stdin alone, and shows
in no argument, log or traceback.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from dsparkctl.rollout.host import Ran, SudoError

AskPassword = Callable[[str], str]
"""Given the host's name, a password from a person; raises where nobody can be asked."""


class Root(NamedTuple):
    """What stands before a command, and before its input."""

    prefix: tuple[str, ...]
    lead: bytes = b""

    def __repr__(self) -> str:
        return f"Root({self.prefix})"


NOTHING: Final = Root(())
_QUIET: Final = ("sudo", "-n", "--")
_WITH_PASSWORD: Final = ("sudo", "-k", "-S", "-p", "", "--")
"""-k: what sudo remembers is not used, so that the password's line is always read."""


Try = Callable[[Sequence[str], Root], Ran]
"""Runs a command in one of these ways."""


def find_root(name: str, run: Try, ask: AskPassword) -> Root:
    """The way to root that works on this host; SudoError when none does."""
    if _is_root(run):
        return NOTHING
    quiet = run(("true",), Root(_QUIET))
    if quiet.code == 0:
        return Root(_QUIET)
    reason = _said(quiet)
    if quiet.code == 127:
        raise SudoError(f"{name}: it has no sudo; log in as root, or install it")
    if "not in the sudoers" in reason or "not allowed" in reason or "may not run" in reason:
        raise SudoError(f"{name}: sudo refuses: {reason}")
    root = Root(_WITH_PASSWORD, ask(name).encode() + b"\n")
    tried = run(("true",), root)
    if tried.code:
        raise SudoError(f"{name}: sudo takes no such password: {_said(tried)}")
    return root


def _is_root(run: Try) -> bool:
    return run(("id", "-u"), NOTHING).text == "0"


def _said(ran: Ran) -> str:
    """sudo's last word, without the lines of the lecture before it."""
    lines = ran.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1].removeprefix("sudo: ") if lines else f"exit code {ran.code}"
