"""One command on a host: its argument list, both streams, one deadline.

Decides how a command ends: by itself, at its deadline (here and on the host), or with the link.
Both streams share one window, so one loop drains both; an exit status is asked for only when
everything was read. This is the one place where arguments become a line for a remote shell.
"""

import select
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from dsparkctl.rollout.host import CommandTimedOut, Ran
from dsparkctl.rollout.ssh.dial import CONNECT_TIMEOUT_S, Connection

MAX_STREAM_BYTES: Final = 16 << 20
_CHUNK_BYTES: Final = 1 << 18
_LOOK_EVERY_S: Final = 0.0005
_GRACE_S: Final = 10.0
"""Between the deadline on the host, after which timeout(1) ends the command, and ours."""
_BOUNDED: Final = ("sh", "-c", 'timeout -k 5 "$0" "$@"; exit $?')
"""+ seconds and the command. The shell makes 128 + n of a signal, of which SSH tells no number."""
_TIMED_OUT: Final = (124, 137)
"""What timeout(1) ends with, the second after it had to kill."""

Sink = Callable[[bytes], None]


def line_of(argv: Sequence[str]) -> str:
    """For the login shell that sshd hands it to."""
    if not argv or any("\0" in argument for argument in argv):
        raise ValueError("a command needs arguments, none of them with a NUL")
    return shlex.join(argv)


def run(
    connection: Connection,
    argv: Sequence[str],
    *,
    prefix: Sequence[str] = (),
    stdin: Iterator[bytes],
    timeout_s: float,
    heard: Sink | None = None,
) -> Ran:
    """Run to the end. `prefix` is what makes root of us; `heard` is told of stdout as it comes.

    An empty piece of `stdin` means: nothing yet.

    The host ends the command at `timeout_s`, should we be gone by then; timeout(1) stands behind
    sudo, since it could not end what runs as root.
    """
    bounded = [*prefix, *_BOUNDED, f"{timeout_s:.3f}", *argv]
    out, err = bytearray(), bytearray()
    started_s = time.monotonic()

    def hear(data: bytes) -> None:
        _keep(out, data)
        if heard is not None:
            heard(data)

    with opened(connection, bounded) as channel:
        code = pump(
            connection,
            channel,
            stdin,
            hear,
            lambda data: _keep(err, data),
            end_s=started_s + timeout_s + _GRACE_S,
        )
    spent_s = time.monotonic() - started_s
    if code is None or (code in _TIMED_OUT and spent_s >= timeout_s):
        raise CommandTimedOut(
            f"{connection.name}: {shlex.join(argv)[:120]}: still running after {timeout_s:g} s; "
            "it was ended"
        )
    return Ran(tuple(argv), code, bytes(out), bytes(err))


def _keep(kept: bytearray, data: bytes) -> None:
    kept.extend(data[: max(0, MAX_STREAM_BYTES - len(kept))])


@contextmanager
def opened(connection: Connection, argv: Sequence[str]) -> Iterator[Any]:
    """A channel on which the command runs; closed whatever happens."""
    channel = connection.channel(
        lambda transport: transport.open_session(timeout=CONNECT_TIMEOUT_S)
    )
    try:
        line = line_of(argv)
        connection.channel(lambda _: channel.exec_command(line))
        yield channel
    finally:
        channel.close()


def pump(
    connection: Connection,
    channel: Any,
    stdin: Iterator[bytes],
    out: Sink,
    err: Sink,
    *,
    end_s: float | None,
    keep_open: bool = False,
) -> int | None:
    """Feed and drain until the command has ended: its exit status, or None at `end_s`
    (monotonic). SshError when the link goes first.

    Behind `stdin` the command sees the end of its input, unless that is to be kept open.
    """
    channel.setblocking(False)
    rest: memoryview | None = memoryview(b"")
    while True:
        moved = _drain(channel, out, err)
        if rest is not None:
            rest, sent = _feed(channel, rest, stdin, keep_open)
            moved = moved or sent
        if moved:
            continue
        if channel.closed or (channel.eof_received and channel.exit_status_ready()):
            _drain(channel, out, err)
            break
        if not connection.is_alive:
            raise connection.lost()
        left_s = 1.0 if end_s is None else min(1.0, end_s - time.monotonic())
        if left_s <= 0:
            return None
        # Room in the window for more input wakes nobody up: that is looked for.
        select.select((channel,), (), (), left_s if rest is None else _LOOK_EVERY_S)
    code: int = channel.exit_status if channel.exit_status_ready() else -1
    if code < 0:
        raise connection.lost()
    return code


def _drain(channel: Any, out: Sink, err: Sink) -> bool:
    moved = False
    while channel.recv_ready():
        out(channel.recv(_CHUNK_BYTES))
        moved = True
    while channel.recv_stderr_ready():
        err(channel.recv_stderr(_CHUNK_BYTES))
        moved = True
    return moved


def _feed(
    channel: Any, rest: memoryview, stdin: Iterator[bytes], keep_open: bool
) -> tuple[memoryview | None, bool]:
    """Send what fits; the rest of the input, None once that is all, and whether anything went."""
    if channel.closed or channel.eof_sent:
        return None, False
    if not rest:
        chunk = next(stdin, None)
        if chunk is None:
            if not keep_open:
                channel.shutdown_write()
            return None, True
        return memoryview(chunk), bool(chunk)
    if not channel.send_ready():
        return rest, False
    try:
        return rest[channel.send(rest[:_CHUNK_BYTES]) :], True
    except TimeoutError:  # the window closed in between
        return rest, False
    except (OSError, EOFError):  # input or link is closed; what comes back tells which
        return None, False
