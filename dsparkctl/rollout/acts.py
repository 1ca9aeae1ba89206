"""The acts that plans are made of: commands, files, uploads, symlinks, waits.

Decides how each is done on a `Host` so that it may be done again. Refuses to know why.
"""

import hashlib
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from dsparkctl.rollout.host import Host, HostError, Ran
from dsparkctl.rollout.plan import Tell

_SYNC_TIMEOUT_S: Final = 120.0
_SHALLOW: Final = 2
"""Parts of `/x`: neither that nor `/` is ever removed."""


class WaitTimedOut(HostError):  # noqa: N818 -- what happened
    """What was waited for did not come before its deadline; the message names both."""


@dataclass(frozen=True, slots=True)
class Run:
    """A command that must succeed, unless it says that it may not."""

    argv: tuple[str, ...]
    as_root: bool = True
    stdin: bytes = b""
    timeout_s: float = 60.0
    may_fail: bool = False

    def apply(self, host: Host, tell: Tell) -> None:
        run = host.run if self.may_fail else host.check
        run(self.argv, stdin=self.stdin, as_root=self.as_root, timeout_s=self.timeout_s)

    def __str__(self) -> str:
        fed = f" < sha256:{_digest(self.stdin)}" if self.stdin else ""
        who = "" if self.as_root else "as the ssh account: "
        return f"{who}{'try to ' * self.may_fail}run {shlex.join(self.argv)}{fed}"


@dataclass(frozen=True, slots=True)
class Write:
    """A small file, whole or not at all; `owner` is `user:group`, None: who writes."""

    path: PurePosixPath
    data: bytes
    mode: int = 0o644
    owner: str | None = None
    as_root: bool = True

    def apply(self, host: Host, tell: Tell) -> None:
        host.write(self.path, self.data, mode=self.mode, owner=self.owner, as_root=self.as_root)

    def __str__(self) -> str:
        who = f" of {self.owner}" if self.owner else ""
        return f"write {self.path} ({self.mode:04o}{who}, sha256:{_digest(self.data)})"


@dataclass(frozen=True, slots=True)
class PutFile:
    """One large file, resumed where an earlier try broke off; not as root: a folder of the ssh
    account."""

    local: Path
    remote: PurePosixPath
    sha256: str

    def apply(self, host: Host, tell: Tell) -> None:
        progress = tell.progress(f"{host.name}: {self.remote.name}")
        host.put_file(self.local, self.remote, sha256=self.sha256, progress=progress)

    def __str__(self) -> str:
        return f"upload {self.remote} (sha256:{self.sha256})"


@dataclass(frozen=True, slots=True)
class PutTree:
    """Many small files into one folder of the ssh account, in one stream."""

    files: tuple[Path, ...]
    remote: PurePosixPath
    sha256: tuple[str, ...]
    """Of each file, for the plan's hash."""

    def apply(self, host: Host, tell: Tell) -> None:
        progress = tell.progress(f"{host.name}: {len(self.files)} files")
        host.put_tree(self.files, self.remote, progress=progress)

    def __str__(self) -> str:
        names = ", ".join(
            f"{path.name} (sha256:{sha})" for path, sha in zip(self.files, self.sha256, strict=True)
        )
        return f"upload to {self.remote}: {names}"


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder with this owner and mode, made or put right."""

    path: PurePosixPath
    owner: str = "root:root"
    mode: int = 0o755

    def apply(self, host: Host, tell: Tell) -> None:
        user, _, group = self.owner.partition(":")
        made = ("install", "-d", "-m", f"{self.mode:04o}", "-o", user, "-g", group or user)
        host.check((*made, str(self.path)), as_root=True)

    def __str__(self) -> str:
        return f"make folder {self.path} ({self.mode:04o} of {self.owner})"


@dataclass(frozen=True, slots=True)
class Remove:
    """A file, a link or a whole folder, no matter whether it is there."""

    path: PurePosixPath

    def __post_init__(self) -> None:
        if len(self.path.parts) <= _SHALLOW or ".." in self.path.parts:
            raise ValueError(f"expected a path below a folder of ours, got {self.path}")

    def apply(self, host: Host, tell: Tell) -> None:
        host.check(("rm", "-rf", "--", str(self.path)), as_root=True, timeout_s=600.0)

    def __str__(self) -> str:
        return f"remove {self.path}"


@dataclass(frozen=True, slots=True)
class Switch:
    """A symlink that points to `target` from one instant to the next (rename, synced)."""

    link: PurePosixPath
    target: str

    def apply(self, host: Host, tell: Tell) -> None:
        beside = f"{self.link}.new"
        host.check(("ln", "-sfn", "--", self.target, beside), as_root=True)
        host.check(("mv", "-Tf", "--", beside, str(self.link)), as_root=True)
        host.check(("sync", "-f", str(self.link.parent)), as_root=True, timeout_s=_SYNC_TIMEOUT_S)

    def __str__(self) -> str:
        return f"point {self.link} to {self.target}"


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Look again and again with a command, until what it says pleases; never for ever.

    `is_so` is called with what the command said, whatever its exit code.
    """

    what: str
    """What is waited for: "port 29501 to be open"."""
    argv: tuple[str, ...]
    is_so: Callable[[Ran], bool]
    timeout_s: float
    interval_s: float = 1.0
    as_root: bool = False
    stdin: bytes = b""

    def apply(self, host: Host, tell: Tell) -> None:
        end_s = time.monotonic() + self.timeout_s
        tell.say(f"{host.name}: waiting up to {self.timeout_s:.0f} s for {self.what}")
        while True:
            left_s = end_s - time.monotonic()
            ran = host.run(
                self.argv, stdin=self.stdin, as_root=self.as_root, timeout_s=max(5.0, left_s)
            )
            if self.is_so(ran):
                return
            if time.monotonic() + self.interval_s > end_s:
                raise WaitTimedOut(
                    f"{host.name}: waited {self.timeout_s:.0f} s in vain for {self.what}; "
                    f"last seen: {_said(ran)}"
                )
            time.sleep(self.interval_s)

    def __str__(self) -> str:
        return f"wait at most {self.timeout_s:g} s for {self.what} ({shlex.join(self.argv)})"


def _said(ran: Ran) -> str:
    """The last line a command said, short."""
    lines = (ran.stdout + b"\n" + ran.stderr).decode("utf-8", "replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
    return f"{last[:200]} (exit code {ran.code})"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
