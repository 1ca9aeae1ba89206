"""What the checks speak through: a socket, or ofl in a socket's clothes (§5).

Decides how a message leaves when the carrier keeps messages apart: once its last byte was put. A
carrier like that knows no pieces and no lengths that lie, so checks of those ask `is_stream`.
"""

import socket
import time
from typing import Final, Protocol

from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.framing import MAX_MESSAGE_BYTES, PREFIX_BYTES, prefix
from dsparkctl.net.dial import dial
from dsparkctl.net.transport import Deadline, Link, TimedOut, TransportError

_LOOK_EVERY_S: Final = 0.005


class Stream(Protocol):
    """The few verbs of a socket that a line needs; all as a socket's."""

    def settimeout(self, timeout_s: float, /) -> None: ...

    def sendall(self, data: bytes, /) -> None: ...

    def recv(self, n_bytes: int, flags: int = 0, /) -> bytes: ...

    def close(self) -> None: ...


def open_stream(endpoint: Endpoint, timeout_s: float) -> Stream:
    """A connection to the listener; OSError when there is none."""
    if endpoint.scheme != "tcp":
        try:
            return _Messages(dial(endpoint, Deadline(timeout_s)))
        except TransportError as error:
            raise OSError(str(error)) from None
    source = (endpoint.bind, 0) if endpoint.bind else None
    address = (endpoint.host, endpoint.port)
    sock = socket.create_connection(address, timeout_s, source_address=source)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class _Messages:
    """Prefixed messages over a link: an exchange when one is whole, its reply as a stream again."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._timeout_s = 0.0
        self._unsent = bytearray()
        self._unread = bytearray()
        self._is_over = False
        self._is_silent = False

    def settimeout(self, timeout_s: float, /) -> None:
        self._timeout_s = timeout_s

    def sendall(self, data: bytes, /) -> None:
        self._unsent += data
        while not self._is_over and len(self._unsent) >= PREFIX_BYTES:
            end = PREFIX_BYTES + int.from_bytes(self._unsent[:PREFIX_BYTES], "little")
            if not PREFIX_BYTES < end <= PREFIX_BYTES + MAX_MESSAGE_BYTES:
                self._is_over = True  # no such message can be sent
                return
            if len(self._unsent) < end:
                return
            message = bytes(self._unsent[PREFIX_BYTES:end])
            del self._unsent[:end]
            self._exchange(message)

    def _exchange(self, message: bytes) -> None:
        try:
            reply = self._link.exchange((message,), Deadline(self._timeout_s))
        except TimedOut:
            self._is_silent = True
        except TransportError:
            self._is_over = True
        else:
            self._unread += prefix(len(reply)) + reply

    def recv(self, n_bytes: int, flags: int = 0, /) -> bytes:
        end_s = time.monotonic() + self._timeout_s
        while not self._unread:
            if self._is_over:
                return b""
            if time.monotonic() >= end_s:
                raise TimeoutError
            time.sleep(_LOOK_EVERY_S)
            if not self._is_silent:  # the answer in time did not come; the link is closed (§7.5)
                self._look()
        data = bytes(self._unread[:n_bytes])
        if not flags & socket.MSG_PEEK:
            del self._unread[:n_bytes]
        return data

    def _look(self) -> None:
        try:
            self._link.check()
        except TransportError:
            self._is_over = True

    def close(self) -> None:
        self._link.close()
