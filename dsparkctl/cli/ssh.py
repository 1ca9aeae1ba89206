"""Hosts opened for a command: which ssh_config counts, and who is asked for a password.

Decides that only a person at a terminal is ever asked. Refuses to know what is done on a host.
"""

import getpass
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dsparkctl.rollout.host import Host, SudoError
from dsparkctl.rollout.ssh.fleet import Hosts
from dsparkctl.rollout.ssh.known_hosts import Trust

if TYPE_CHECKING:
    from dsparkctl.config.fleet import Fleet

SSH_CONFIG: Final = "DSPARK_SSH_CONFIG"
"""Instead of ~/.ssh/config, as ssh's own -F."""

HostKey = Annotated[
    Trust,
    typer.Option("--host-key", help="accept-new writes down the key of a host that is new."),
]


def open_host(fleet: "Fleet | None", name: str, trust: Trust = Trust.STRICT) -> Host:
    """A host of the configuration, or, under a name that it does not know, an ssh alias.

    It connects at its first verb, anew after a lost connection; its owner closes it.
    """
    named = os.environ.get(SSH_CONFIG)
    return Hosts(
        fleet,
        trust=trust,
        ask_password=_password,
        ssh_config=Path(named) if named else None,
        closing=ExitStack(),  # each host is closed by whom it was opened for
    )[name]


def _password(host: str) -> str:
    if not sys.stdin.isatty():
        raise SudoError(
            f"{host}: sudo asks for a password, and there is no terminal to ask at: run this at "
            "one, or permit sudo without a password there"
        )
    return getpass.getpass(f"sudo password on {host}: ", stream=sys.stderr)
