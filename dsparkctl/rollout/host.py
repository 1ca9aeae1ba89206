"""A host as the rollout sees it: argument lists, files, and channels to its own ports.

Decides the verbs and their errors. Refuses to know SSH: `dsparkctl.rollout.ssh` carries them. No
verb takes a line for a shell; where a remote shell has to read one, it is quoted in one place.
"""

import socket
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Protocol

Progress = Callable[[int, int], None]
"""Told the bytes that are on their way or there, and all of them."""


class HostError(Exception):
    """A host did not do what it was asked, and it is not known that it could; one line that names
    the host, what was tried and what to do."""


class SshError(HostError):
    """No session with the host: name, address, authentication, a dead link (exit code 4)."""


class HostKeyError(SshError):
    """The host's key is unknown, or not the one that is known."""


class SudoError(HostError):
    """Root is needed and sudo refuses: no right to it, or no password or a wrong one."""


class CommandTimedOut(HostError):  # noqa: N818 -- what happened
    """A command was still running at its deadline; it has been ended on the host too."""


class CommandFailed(HostError):  # noqa: N818
    """A command that had to succeed ended with another code; carries what it said."""

    def __init__(self, message: str, ran: "Ran") -> None:
        super().__init__(message)
        self.ran = ran


class Ran(NamedTuple):
    """What became of a command."""

    argv: tuple[str, ...]
    code: int
    """Its exit status; 128 + n when signal n ended it."""
    stdout: bytes
    stderr: bytes
    """Both whole, or cut at the bound that `run` names."""

    @property
    def text(self) -> str:
        """stdout as text without its last line break."""
        return self.stdout.decode("utf-8", "replace").rstrip("\n")


class Host(Protocol):
    """One machine. All verbs raise HostError; `timeout_s` bounds the whole verb, not a read."""

    @property
    def name(self) -> str:
        """Its name in `dspark.yaml`."""

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        as_root: bool = False,
        timeout_s: float = 60.0,
    ) -> Ran:
        """Run a command to its end, whatever its exit code. At most 16 MiB of each stream are kept.

        On a timeout the command is ended on the host as well.
        """

    def check(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        as_root: bool = False,
        timeout_s: float = 60.0,
    ) -> Ran:
        """The same; CommandFailed, with the last line it said, when the code is not 0."""

    def follow(
        self, argv: Sequence[str], line: Callable[[str], None], *, as_root: bool = False
    ) -> int:
        """Run a command and hand on its lines as they come, until it ends or the caller is
        interrupted (the command is then ended); its exit code."""

    def put_file(
        self, local: Path, remote: PurePosixPath, *, sha256: str, progress: Progress | None = None
    ) -> None:
        """Bring one large file to `remote`, its folder being writable for the account.

        Resumes what an earlier call left at `remote` + `.part`, checks sha256 on the host, then
        renames: a half file never stands under the final name.
        """

    def put_tree(
        self, files: Sequence[Path], remote: PurePosixPath, *, progress: Progress | None = None
    ) -> None:
        """Bring files (by their base names) into the folder `remote` in one stream, every sha256
        checked on the host."""

    def write(
        self,
        path: PurePosixPath,
        data: bytes,
        *,
        mode: int = 0o644,
        owner: str | None = None,
        as_root: bool = False,
        timeout_s: float = 60.0,
    ) -> None:
        """Write a small file whole or not at all: a temporary one beside it, synced, renamed."""

    def connect(self, address: str, port: int, *, timeout_s: float) -> socket.socket:
        """A local socket whose other end is `address`:`port` as the host itself reaches it."""

    def close(self) -> None:
        """End the connection; a second time does nothing."""


class Hosts(Protocol):
    """Hosts by the names that `dspark.yaml` gives them."""

    def __getitem__(self, name: str, /) -> Host: ...
