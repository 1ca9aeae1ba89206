"""One host over SSH: the `Host` protocol on one connection, which opens at the first use.

Decides nothing but the order of calls: how root is found once, how a large file is resumed. One
channel at a time and a forwarded port or two: sshd allows ten.
"""

import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from dsparkctl.rollout.host import CommandFailed, HostError, Progress, Ran, SshError
from dsparkctl.rollout.ssh import upload
from dsparkctl.rollout.ssh.config import Route
from dsparkctl.rollout.ssh.dial import CONNECT_TIMEOUT_S, Connection, connect
from dsparkctl.rollout.ssh.forward import socket_of
from dsparkctl.rollout.ssh.known_hosts import Trust
from dsparkctl.rollout.ssh.running import opened, pump, run
from dsparkctl.rollout.ssh.sudo import NOTHING, AskPassword, Root, find_root

_SLOWEST_BYTES_PER_S: Final = 500_000
"""What an upload or a look at a file may take is counted by this, beside a minute."""

_FAIL_AGAIN_S: Final = 15.0
"""A host that could not be reached is not waited for again by each of the verbs that follow."""

_FOLLOW: Final = (
    "sh",
    "-c",
    'exec 3<&0; "$@" 3<&- & p=$!; { cat <&3; kill "$p"; } >/dev/null 2>&1 & wait "$p"',
    "follow",
)
"""Ends the command when its input ends, which is what becomes of it when we go."""


class SshHost:
    """A `Host`; one thread uses it."""

    def __init__(
        self,
        name: str,
        route: Route,
        *,
        pinned: str | None = None,
        trust: Trust = Trust.STRICT,
        sudo: bool = True,
        ask_password: AskPassword,
    ) -> None:
        self.route = route
        self._name = name
        self._pinned = pinned
        self._trust = trust
        self._ask_password = ask_password
        self._root: Root | None = None if sudo else NOTHING
        self._connection: Connection | None = None
        self._opening = threading.Lock()
        self._failed: tuple[SshError | None, float] = (None, 0.0)

    @property
    def name(self) -> str:
        return self._name

    def _open(self) -> Connection:
        with self._opening:
            if self._connection is not None and self._connection.is_alive:
                return self._connection
            failed, failed_s = self._failed
            if failed is not None and time.monotonic() - failed_s < _FAIL_AGAIN_S:
                raise SshError(str(failed))
            try:
                self._connection = connect(
                    self._name, self.route, pinned=self._pinned, trust=self._trust
                )
            except SshError as error:
                self._failed = error, time.monotonic()
                raise
            return self._connection

    def close(self) -> None:
        """End the connection; the next verb opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # --- commands ---------------------------------------------------------------------------------

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        as_root: bool = False,
        timeout_s: float = 60.0,
    ) -> Ran:
        return self._run(argv, iter((stdin,)), self._way(as_root), timeout_s)

    def check(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        as_root: bool = False,
        timeout_s: float = 60.0,
    ) -> Ran:
        return self._whole(self.run(argv, stdin=stdin, as_root=as_root, timeout_s=timeout_s))

    def _run(
        self, argv: Sequence[str], stdin: Iterator[bytes], root: Root, timeout_s: float
    ) -> Ran:
        def fed() -> Iterator[bytes]:
            yield root.lead
            yield from stdin

        return run(self._open(), argv, prefix=root.prefix, stdin=fed(), timeout_s=timeout_s)

    def _way(self, as_root: bool) -> Root:
        if not as_root:
            return NOTHING
        if self._root is None:
            self._root = find_root(
                self._name,
                lambda argv, root: self._run(argv, iter(()), root, 20.0),
                self._ask_password,
            )
        return self._root

    def _whole(self, ran: Ran) -> Ran:
        if ran.code == 0:
            return ran
        said = (ran.stderr or ran.stdout).decode("utf-8", "replace").strip().splitlines()
        reason = said[-1][:400] if said else "no reason given"
        what = shlex.join(ran.argv)[:120]
        raise CommandFailed(f"{self._name}: {what} ended with {ran.code}: {reason}", ran)

    def follow(
        self, argv: Sequence[str], line: Callable[[str], None], *, as_root: bool = False
    ) -> int:
        root, out, err = self._way(as_root), _Lines(line), _Lines(line)
        connection = self._open()
        with opened(connection, [*root.prefix, *_FOLLOW, *argv]) as channel:
            code = pump(
                connection, channel, iter((root.lead,)), out, err, end_s=None, keep_open=True
            )
        out.finish()
        err.finish()
        assert code is not None
        return code

    # --- files ------------------------------------------------------------------------------------

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
        script = (*upload.WRITE, str(path), f"{mode:o}", owner or "", str(len(data)))
        self._scripted(f"write {path}", script, iter((data,)), self._way(as_root), timeout_s)

    def put_file(
        self, local: Path, remote: PurePosixPath, *, sha256: str, progress: Progress | None = None
    ) -> None:
        n_bytes = local.stat().st_size
        for _ in range(2):
            n_there, ran = self._send(local, remote, n_bytes, sha256, progress)
            if ran.code != upload.WRONG_DIGEST:
                self._whole(ran._replace(argv=("upload", remote.name)))
                return
            if not n_there:
                break
            # What lay there was the beginning of another file: once more, from ours.
        raise HostError(
            f"{self._name}: {remote}: sha256 of what arrived is "
            f"{ran.stderr.decode('utf-8', 'replace').strip()[:64]}, expected {sha256}; is {local} "
            "being written to? Nothing was left there"
        )

    def _send(
        self,
        local: Path,
        remote: PurePosixPath,
        n_bytes: int,
        sha256: str,
        progress: Progress | None,
    ) -> tuple[int, Ran]:
        """How many bytes were there before, and what became of the rest."""
        said = bytearray()

        def rest() -> Iterator[bytes]:
            while not said.endswith(b"\n"):
                yield b""
            yield from _told(upload.chunks(local, int(said)), int(said), n_bytes, progress)

        script = (*upload.RECEIVE, f"{remote}.part", str(remote), str(n_bytes), sha256)
        ran = run(
            self._open(),
            script,
            stdin=rest(),
            timeout_s=60.0 + n_bytes / _SLOWEST_BYTES_PER_S,
            heard=said.extend,
        )
        return int(said or b"0"), ran

    def put_tree(
        self, files: Sequence[Path], remote: PurePosixPath, *, progress: Progress | None = None
    ) -> None:
        n_bytes = sum(path.stat().st_size for path in files)
        patient_s = 60.0 + n_bytes / _SLOWEST_BYTES_PER_S
        digests = upload.digests_of(files)
        stream = _told(upload.tar_of(files), 0, n_bytes, progress)
        self._scripted(
            f"upload {len(files)} files to {remote}", (*upload.UNPACK, str(remote)), stream,
            NOTHING, patient_s,
        )  # fmt: skip
        self._scripted(
            f"check {len(files)} files in {remote}", (*upload.CHECK, str(remote)), iter((digests,)),
            NOTHING, patient_s,
        )  # fmt: skip

    def _scripted(
        self,
        what: str,
        script: Sequence[str],
        stdin: Iterator[bytes],
        root: Root,
        timeout_s: float,
    ) -> None:
        """Run a constant script and say what it was for, where it fails."""
        ran = self._run(script, stdin, root, timeout_s)
        self._whole(ran._replace(argv=tuple(what.split())))

    # --- ports ------------------------------------------------------------------------------------

    def connect(self, address: str, port: int, *, timeout_s: float) -> socket.socket:
        place = (address, port)
        connection = self._open()
        try:
            channel = connection.channel(
                lambda transport: transport.open_channel(
                    "direct-tcpip",
                    place,
                    ("127.0.0.1", 0),
                    timeout=min(timeout_s, CONNECT_TIMEOUT_S),
                )
            )
        except HostError as error:
            if not connection.is_alive:
                raise
            reason = str(error).rpartition(": ")[2]
            raise HostError(
                f"{self._name}: nothing answers there at {address} port {port}: {reason}"
            ) from None
        return socket_of(channel)


def _told(
    pieces: Iterator[bytes], n_sent: int, n_bytes: int, progress: Progress | None
) -> Iterator[bytes]:
    for piece in pieces:
        yield piece
        n_sent += len(piece)
        if progress is not None:
            progress(min(n_sent, n_bytes), n_bytes)


class _Lines:
    """Pieces of one stream, handed on as the lines they make."""

    def __init__(self, line: Callable[[str], None]) -> None:
        self._line = line
        self._held = b""

    def __call__(self, data: bytes) -> None:
        *whole, self._held = (self._held + data).split(b"\n")
        for one in whole:
            self._line(one.decode("utf-8", "replace"))

    def finish(self) -> None:
        if self._held:
            self._line(self._held.decode("utf-8", "replace"))
