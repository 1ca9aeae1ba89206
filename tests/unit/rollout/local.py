"""A host without SSH: argument lists are run on this machine, perhaps in a network namespace."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dsparkctl.rollout.host import CommandFailed, Host, HostError, Ran


@dataclass
class LocalHost:
    """As much of a `Host` as looking needs; what it may be made to do wrong are fields."""

    name: str = "here"
    prefix: tuple[str, ...] = ()
    """In front of every command: `ip netns exec NAME`."""
    noise: bytes = b""
    """What the account's shell prints before every command's own output."""
    sudo_error: HostError | None = None
    lost: HostError | None = None
    """Raised by every verb."""
    ran: list[tuple[str, ...]] = field(default_factory=list)
    is_open: bool = True

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        as_root: bool = False,
        timeout_s: float = 60.0,
    ) -> Ran:
        if self.lost is not None:
            raise self.lost
        if as_root and self.sudo_error is not None:
            raise self.sudo_error
        self.ran.append(tuple(argv))
        # Its python3 is the one that runs the tests; what is installed there is not looked at.
        env = dict(os.environ) | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        env.pop("PYTHONPATH", None)
        command = (*self.prefix, *argv)
        try:
            done = subprocess.run(
                command, input=stdin, capture_output=True, timeout=timeout_s, env=env, check=False
            )
        except FileNotFoundError:
            return Ran(tuple(argv), 127, self.noise, f"{argv[0]}: command not found".encode())
        return Ran(tuple(argv), done.returncode, self.noise + done.stdout, done.stderr)

    def check(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        as_root: bool = False,
        timeout_s: float = 60.0,
    ) -> Ran:
        ran = self.run(argv, stdin=stdin, as_root=as_root, timeout_s=timeout_s)
        if ran.code:
            said = ran.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise CommandFailed(f"{self.name}: {argv[0]} ended with {ran.code}: {said}", ran)
        return ran

    def connect(self, address: str, port: int, *, timeout_s: float) -> socket.socket:
        if self.lost is not None:
            raise self.lost
        try:
            return socket.create_connection((address, port), timeout_s)
        except OSError as error:
            raise HostError(f"{self.name}: {address}:{port}: {error.strerror}") from None

    def close(self) -> None:
        self.is_open = False

    # A doctor looks, so these are never called: a test that reaches one fails loudly.
    follow = put_file = put_tree = write = None


def as_host(host: LocalHost) -> Host:
    """The same for a type checker: the verbs that change something are missing on purpose."""
    return host  # type: ignore[return-value]


def fake_command(folder: Path, name: str, text: str) -> str:
    """A PATH in whose first folder `name` is a shell script; the rest is this process's."""
    folder.mkdir(exist_ok=True)
    script = folder / name
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"
