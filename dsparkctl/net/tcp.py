"""The client's end of the contract's TCP stub (§5): prefix and message out, prefix and reply in.

Decides when a connection is of no more use: a passed deadline (C26), a peer that is gone, a length
that no reply can have, a byte that nobody asked for (C22). Refuses to know what a message says.

The socket never blocks. A call is tried first and only waited for when it would block, and a reply
is taken with as few calls as it arrives in: prefix and body usually come in one. With a spin budget
a reply is looked for again and again for so long before the kernel is asked to wake us: it comes
sooner, and a core is busy meanwhile.
"""

import os
import select
import socket
import time
from collections.abc import Sequence
from typing import Any, Final

from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.errors import WireError
from dsparkctl.contract.framing import MAX_REPLY_BYTES, PREFIX_BYTES, message_bytes, prefix
from dsparkctl.contract.layout import Buffer
from dsparkctl.net.transport import Broken, Deadline, TimedOut

_BEHIND: Final = 1
"""Room for one byte behind the longest reply, so that a stray one is seen."""


class TcpLink:
    """A connection to one listener, made by `dial_tcp`, or any other stream that leads there. A
    `Link`."""

    def __init__(self, sock: socket.socket, endpoint: Endpoint, spin_s: float = 0.0) -> None:
        sock.setblocking(False)
        self._spin_s = spin_s
        self._endpoint = endpoint
        self._sock = sock
        self._poll = select.poll()
        self._buffer = memoryview(bytearray(PREFIX_BYTES + MAX_REPLY_BYTES + _BEHIND))
        self._has_strays = False
        self._is_closed = False
        self._arrivals = select.poll()
        self._arrivals.register(sock, select.POLLIN)

    @property
    def endpoint(self) -> Endpoint:
        return self._endpoint

    def exchange(self, parts: Sequence[Buffer], deadline: Deadline) -> memoryview:
        """Send the buffers as one message, return its reply as a view; see `Link`."""
        try:
            self._look_for_strays()
            self._send(parts, deadline)
            return self._receive(deadline)
        except OSError as error:
            self.close()
            raise self._broken(_reason(error)) from None
        except BaseException:
            self.close()
            raise

    def check(self) -> None:
        """Whether the connection still stands, with nothing on it; see `Link`."""
        try:
            self._look_for_strays()
        except OSError as error:
            self.close()
            raise self._broken(_reason(error)) from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._is_closed = True
        self._sock.close()

    def _look_for_strays(self) -> None:
        """C22: what came behind the last reply answers nothing, so it must not be read as one."""
        if self._is_closed:
            raise self._broken("the connection was given up")
        if not self._has_strays and not self._arrivals.poll(0):
            return
        if not self._has_strays and not self._sock.recv_into(self._buffer, 1):
            raise self._broken("the peer closed the connection")
        raise self._broken("bytes came that no request asked for")

    def _send(self, parts: Sequence[Buffer], deadline: Deadline) -> None:
        rest = [memoryview(part).cast("B") for part in parts if len(part)]
        n_left = sum(map(len, rest))
        rest.insert(0, memoryview(prefix(n_left)))
        n_left += PREFIX_BYTES
        while True:
            try:
                n_sent = self._sock.sendmsg(rest)
            except BlockingIOError:
                self._wait(select.POLLOUT, deadline)
                continue
            n_left -= n_sent
            if not n_left:
                return
            while n_sent >= len(rest[0]):
                n_sent -= len(rest.pop(0))
            rest[0] = rest[0][n_sent:]

    def _receive(self, deadline: Deadline) -> memoryview:
        n_held, n_wanted, room = 0, PREFIX_BYTES, self._buffer
        receive, spin_until_s = self._sock.recv_into, 0.0
        if self._spin_s:
            spin_until_s = time.perf_counter() + min(self._spin_s, deadline.left_s)
        while n_held < n_wanted:
            try:
                n = receive(room)
            except BlockingIOError:
                if time.perf_counter() >= spin_until_s:
                    self._wait(select.POLLIN, deadline)
                continue
            if not n:
                within = "in the middle of its reply" if n_held else "instead of replying"
                raise self._broken(f"the peer closed the connection {within}")
            n_held += n
            if n_wanted == PREFIX_BYTES <= n_held:
                n_wanted += self._reply_bytes()
            room = self._buffer[n_held:]
        self._has_strays = n_held > n_wanted
        return self._buffer[PREFIX_BYTES:n_wanted]

    def _reply_bytes(self) -> int:
        try:
            return message_bytes(self._buffer, limit=MAX_REPLY_BYTES)
        except WireError as error:
            raise self._broken(f"the answer has no DSP1 header: {error}") from None

    def _wait(self, event: int, deadline: Deadline) -> None:
        left_s = deadline.left_s
        self._poll.register(self._sock, event)
        if not left_s or not self._poll.poll(left_s * 1e3):
            raise TimedOut(f"{self.endpoint}: no whole answer within {deadline.timeout_s:g} s")

    def _broken(self, reason: str) -> Broken:
        return Broken(f"{self.endpoint}: {reason}")


def dial_tcp(endpoint: Endpoint, deadline: Deadline, spin_s: float = 0.0) -> TcpLink:
    """Connect, from `?bind=` where the endpoint has one (§5); TimedOut or Broken otherwise.

    A name is resolved first, by the system and in its own time; an address costs nothing.
    """
    reason = "names no address to connect to"
    for family, address in addresses(endpoint):
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:  # no descriptor left, or a family that this host does not speak
            reason = _reason(error)
            continue
        try:
            _connect(sock, endpoint, address, deadline)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return TcpLink(sock, endpoint, spin_s)
        except TimeoutError:
            sock.close()
            raise TimedOut(f"{endpoint}: no connection within {deadline.timeout_s:g} s") from None
        except OSError as error:
            sock.close()
            reason = _reason(error)
        except BaseException:
            sock.close()
            raise
    raise Broken(f"{endpoint}: {reason}")


def addresses(endpoint: Endpoint) -> list[tuple[int, tuple[Any, ...]]]:
    """Families and addresses that the endpoint may mean; only those its `?bind=` can reach."""
    if not endpoint.host:
        return []
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise Broken(f"{endpoint}: the name {endpoint.host} is not known here") from None
    family = None
    if endpoint.bind is not None:
        family = socket.AF_INET6 if ":" in endpoint.bind else socket.AF_INET
    return [(kind, address) for kind, _, _, _, address in found if family in (None, kind)]


def _connect(
    sock: socket.socket, endpoint: Endpoint, address: tuple[Any, ...], deadline: Deadline
) -> None:
    left_s = deadline.left_s
    if not left_s:
        raise TimeoutError
    if endpoint.bind is not None:
        try:
            sock.bind((endpoint.bind, 0))
        except OSError as error:
            raise OSError(0, f"cannot bind to {endpoint.bind}: {_reason(error)}") from None
    sock.settimeout(left_s)
    sock.connect(address)
    if sock.getsockname() == sock.getpeername():
        # Loopback can connect a free port to itself: nobody listens there but our own echo.
        raise ConnectionRefusedError


def _reason(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: nobody listens there"
    if isinstance(error, (ConnectionResetError, BrokenPipeError)):
        return "the peer closed the connection"
    return error.strerror or (os.strerror(error.errno) if error.errno else str(error))
