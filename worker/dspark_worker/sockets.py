"""Listening sockets: bind first, listen when the worker can draft.

Decides the options of a socket, and what it is to wait for an address. Between the two calls the
address is taken but refuses every connection, so that a busy port is found out before minutes of
loading and nothing answers until the worker can.
"""

import errno
import socket
import struct
import time
from collections.abc import Callable
from typing import TypeVar

from dsparkctl.contract.endpoint import Endpoint

Bound = TypeVar("Bound")

_BACKLOG = 128
_ADDRESS_EVERY_S = 0.5


class ListenError(Exception):
    """An address on which nothing can listen; one line."""


class NoSuchAddress(ListenError):  # noqa: N818 -- what is missing
    """This machine does not have the address, or not yet: a link that is down has none."""


def bound(endpoint: Endpoint) -> socket.socket:
    """A socket bound to a `tcp://` endpoint; ListenError names the endpoint and the cause."""
    try:
        infos = socket.getaddrinfo(
            endpoint.host or None,
            endpoint.port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )
        family, kind, proto, _, address = infos[0]
        sock = socket.socket(family, kind, proto)
    except OSError as error:
        raise ListenError(f"cannot listen on {endpoint}: {error.strerror or error}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        missing = error.errno == errno.EADDRNOTAVAIL
        raise (NoSuchAddress if missing else ListenError)(
            f"cannot listen on {endpoint}: {error.strerror or error}"
        ) from error
    return sock


def bound_in_time(
    bind: Callable[[], Bound],
    wait_s: float,
    *,
    waiting: Callable[[float], None],
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Bound:
    """What `bind` binds, tried for at most `wait_s` seconds while the address is missing.

    Network targets are reached before links have their addresses, and cables get plugged in later
    still. `waiting` is told before every pause how many seconds are left.
    """
    end_s = now() + wait_s
    while True:
        try:
            return bind()
        except NoSuchAddress:
            left_s = end_s - now()
            if left_s <= 0:
                raise
            waiting(left_s)
            sleep(min(_ADDRESS_EVERY_S, left_s))


def listening(sock: socket.socket) -> Endpoint:
    """Start to listen; the endpoint with the port that was really taken.

    ListenError when another listener took a shared address since it was bound.
    """
    host, port = sock.getsockname()[:2]
    endpoint = Endpoint("tcp", host, port)
    try:
        sock.listen(_BACKLOG)
    except OSError as error:
        raise ListenError(f"cannot listen on {endpoint}: {error.strerror or error}") from error
    sock.setblocking(False)
    return endpoint


def accepted(listener: socket.socket) -> socket.socket | None:
    """The next waiting connection with TCP_NODELAY set (§5), or None when there is none."""
    try:
        sock, _ = listener.accept()
    except OSError:  # none is waiting, the peer has gone again, or no descriptor is free
        return None
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return sock


def limit_waits(sock: socket.socket, *, receive_s: float, send_s: float) -> None:
    """Bound how long one blocking call may sleep in the kernel."""
    for option, seconds in ((socket.SO_RCVTIMEO, receive_s), (socket.SO_SNDTIMEO, send_s)):
        whole = int(seconds)
        timeval = struct.pack("@ll", whole, int((seconds - whole) * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, option, timeval)
