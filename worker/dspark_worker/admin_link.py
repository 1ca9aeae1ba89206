"""One connection of the admin listener (R37): short messages, many connections, never in the way.

Decides how bytes become whole messages when nothing may block. A body longer than any admin message
needs is counted and dropped as it comes (PING ignores its body, R13), so that a probe may send a
payload of a STEP's size without this side keeping it.
"""

import socket

from dsparkctl.contract.framing import (
    HEADER_BYTES,
    MAX_MESSAGE_BYTES,
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
        self._n_to_drop = 0

    def receive(self) -> list[tuple[AppHeader, memoryview]]:
        """The messages that are whole now; a long one has an empty body.

        Raises ConnectionError when the peer is gone, WireError when the framing is lost.
        """
        try:
            data = self.sock.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionResetError("closed by the peer")
        found = []
        self._held += data
        while (message := self._next()) is not None:
            found.append(message)
        return found

    def _next(self) -> tuple[AppHeader, memoryview] | None:
        held = self._held
        if len(held) < _HEAD:
            if len(held) >= PREFIX_BYTES:
                message_bytes(held)
            return None
        n_bytes = message_bytes(held, limit=MAX_MESSAGE_BYTES)
        with memoryview(held) as view:
            header = parse_header(view[PREFIX_BYTES:], n_bytes)
        if header.body_len > _KEPT_BODY_BYTES:
            return self._drop_body(header)
        if len(held) < PREFIX_BYTES + n_bytes:
            return None
        body = bytes(held[_HEAD : PREFIX_BYTES + n_bytes])
        del held[: PREFIX_BYTES + n_bytes]
        return header, memoryview(body)

    def _drop_body(self, header: AppHeader) -> tuple[AppHeader, memoryview] | None:
        if not self._n_to_drop:
            self._n_to_drop = header.body_len
        n = min(self._n_to_drop, len(self._held) - _HEAD)
        del self._held[_HEAD : _HEAD + n]
        self._n_to_drop -= n
        if self._n_to_drop:
            return None
        del self._held[:_HEAD]
        return header, memoryview(b"")

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
