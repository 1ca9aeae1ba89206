"""A port of a host's own network as a local socket: a channel, pumped both ways.

Decides nothing. Each way has a thread that waits for one side and writes to the other, so that a
side which does not read holds the other back, and an end of stream is handed on as one.
"""

import contextlib
import select
import socket
import threading
from typing import Any, Final

_CHUNK_BYTES: Final = 1 << 16


def socket_of(channel: Any) -> socket.socket:
    """The near end; closing it ends channel and threads."""
    near, far = socket.socketpair()
    channel.settimeout(None)
    ways = (
        threading.Thread(target=_outward, args=(far, channel), daemon=True),
        threading.Thread(target=_inward, args=(channel, far), daemon=True),
    )
    for way in ways:
        way.start()
    threading.Thread(target=_close_after, args=(ways, far, channel), daemon=True).start()
    return near


def _outward(far: socket.socket, channel: Any) -> None:
    with contextlib.suppress(OSError, EOFError):
        while data := far.recv(_CHUNK_BYTES):
            channel.sendall(data)
    with contextlib.suppress(Exception):
        channel.shutdown_write()
    if _is_gone(far):
        _end(channel)


def _inward(channel: Any, far: socket.socket) -> None:
    with contextlib.suppress(OSError, EOFError):
        while data := channel.recv(_CHUNK_BYTES):
            far.sendall(data)
    with contextlib.suppress(OSError):
        far.shutdown(socket.SHUT_WR)
    if channel.closed:  # nobody is there to hear the rest either
        with contextlib.suppress(OSError):
            far.shutdown(socket.SHUT_RD)


def _is_gone(far: socket.socket) -> bool:
    """Whether the near end was closed, and not only shut for writing."""
    poll = select.poll()
    poll.register(far, 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def _close_after(ways: tuple[threading.Thread, ...], far: socket.socket, channel: Any) -> None:
    for way in ways:
        way.join()
    far.close()
    _end(channel)


def _end(channel: Any) -> None:
    with contextlib.suppress(Exception):  # paramiko raises EOFError where its transport is gone
        channel.close()
