"""Hosts opened for a command: which ssh_config counts, and who is asked for a password.

Decides that only a person at a terminal is ever asked. Refuses to know what is done on a host.
"""

import getpass
import os
import sys
import threading
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

_ASKING: Final = threading.Lock()
"""Hosts are looked at side by side; a person answers one question at a time."""

HostKey = Annotated[
    Trust,
    typer.Option("--host-key", help="accept-new writes down the key of a host that is new."),
]


def open_host(fleet: "Fleet | None", name: str, trust: Trust = Trust.STRICT) -> Host:
    """A host of the configuration, or, under a name that it does not know, an ssh alias.

    It connects at its first verb, anew after a lost connection; its owner closes it.
    """
    return Hosts(
        fleet,
        trust=trust,
        ask_password=ask_password,
        ssh_config=ssh_config(),
        closing=ExitStack(),  # each host is closed by whom it was opened for
    )[name]


def ssh_config() -> Path | None:
    """The file that the environment names; None: ssh's own."""
    named = os.environ.get(SSH_CONFIG)
    return Path(named) if named else None


def ask_password(host: str) -> str:
    """Of a person, for sudo on `host`; SudoError where there is no terminal."""
    if not sys.stdin.isatty():
        raise SudoError(
            f"{host}: sudo asks for a password, and there is no terminal to ask at: run this at "
            "one, or permit sudo without a password there"
        )
    with _ASKING:
        return getpass.getpass(f"sudo password on {host}: ", stream=sys.stderr)
