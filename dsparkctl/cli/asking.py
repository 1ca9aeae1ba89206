"""A question before something that cannot be taken back."""

import sys

import typer

from dsparkctl.cli.exits import Exit, Stop


def ask(question: str, otherwise: str) -> None:
    """Only a person may say yes; a script says --yes. `otherwise` tells what a no came to."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Stop(Exit.USAGE, f"{question} There is no terminal to ask on: say --yes")
    if not typer.confirm(question, err=True):
        raise Stop(Exit.FAILED, otherwise)
