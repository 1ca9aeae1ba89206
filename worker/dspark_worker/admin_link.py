"""One connection of the admin listener (R37): short messages, many connections, never in the way.

Decides how bytes become whole messages when nothing may block. A body longer than any admin message
needs is counted and dropped as it comes (PING ignores its body, R13), so that a probe may send a
payload of a STEP's size without this side keeping it. One message is taken at a time, so that a
peer that asks and asks waits behind the engine at each of them.
"""

import socket

from dsparkctl.contract.framing import (
    HEADER_BYTES,
    PREFIX_BYTES,
    message_bytes,
    prefix,
)
from dsparkctl.contract.messages import parse_header
from dsparkctl.contract.records import AppHeader

_HEAD = PREFIX_BYTES + HEADER_BYTES
_KEPT_BODY_BYTES = 1024
_CHUNK_BYTES = 64 << 10
_MAX_UNSENT_BYTES = 1 << 20
"""A peer that asks and asks without reading is closed when so much waits for it."""


class AdminLink:
    """Bytes in, messages out; replies wait in `unsent` until the socket takes them."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.unsent = bytearray()
        self._held = bytearray()
        self._header: AppHeader | None = None
        self._n_missing = _HEAD
        """Bytes up to the end of the head, then of the body: never of a message behind it."""

    def receive(self) -> tuple[AppHeader, memoryview] | None:
        """The next message, once it is whole; a long one has an empty body.

        Raises ConnectionError when the peer is gone, WireError when the framing is lost.
        """
        try:
            data = self.sock.recv(min(self._n_missing, _CHUNK_BYTES))
        except BlockingIOError:
            return None
        if not data:
            raise ConnectionResetError("closed by the peer")
        self._n_missing -= len(data)
        if self._header is None or self._header.body_len <= _KEPT_BODY_BYTES:
            self._held += data
        if self._header is None:
            self._header = self._read_head()
        if self._header is None or self._n_missing:
            return None
        message = self._header, memoryview(bytes(self._held[_HEAD:]))
        self._header, self._n_missing = None, _HEAD
        self._held.clear()
        return message

    def _read_head(self) -> AppHeader | None:
        """The header, once its last byte is there; an absurd length is told before that."""
        if len(self._held) < PREFIX_BYTES:
            return None
        n_bytes = message_bytes(self._held)
        if self._n_missing:
            return None
        header = parse_header(self._held[PREFIX_BYTES:], n_bytes)
        self._n_missing = header.body_len
        return header

    def queue(self, reply: bytes) -> None:
        """Send what the socket takes and keep the rest; ConnectionError when too much waits."""
        self.unsent += prefix(len(reply)) + reply
        self.flush()
        if len(self.unsent) > _MAX_UNSENT_BYTES:
            raise ConnectionAbortedError("the peer does not read its replies")

    def flush(self) -> None:
        try:
            n = self.sock.send(self.unsent)
        except BlockingIOError:
            return
        del self.unsent[:n]

    def close(self) -> None:
        self.sock.close()
