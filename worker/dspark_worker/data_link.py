"""The engine's connection: one message after the other into one buffer, one reply each (§5).

Decides how bytes become whole messages without a copy. Refuses to know what a message says; the
server hands it to the desk.

The buffer is page-aligned and a message's length prefix is received at offset 28, so that its body
starts at 64 and its row block, a multiple of 64 from there, is aligned for whoever computes on it.
"""

import mmap
import socket
from collections.abc import Callable

from dspark_worker.sockets import accepted, bound, limit_waits, listening
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.framing import HEADER_BYTES, PREFIX_BYTES, message_bytes, prefix
from dsparkctl.contract.messages import parse_header
from dsparkctl.contract.records import AppHeader

_START = 28
_MESSAGE = _START + PREFIX_BYTES
_WAIT_S = 0.05
"""One sleep inside a half-received message; then the listeners get a look (newest wins, §7.5)."""

_FIRST_BYTES = 64 << 10
"""What the first call of a message takes at most: little is left to move when two lie there."""

_SEND_S = 2.0
"""A peer that does not take its reply for so long has lost its connection."""


class ReceiveBuffer:
    """One page-aligned region for the longest message, kept for the worker's whole life."""

    def __init__(self, max_message_bytes: int) -> None:
        self.limit = max_message_bytes
        self.view = memoryview(mmap.mmap(-1, _MESSAGE + max_message_bytes))


class TcpListener:
    """A `Listener` of the contract's TCP stub."""

    def __init__(self, endpoint: Endpoint, now: Callable[[], float]) -> None:
        """ListenError when the address cannot be taken."""
        self._sock = bound(endpoint)
        self._now = now
        self._caller: socket.socket | None = None

    def prepare(self, max_message_bytes: int) -> None:
        self._buffer = ReceiveBuffer(max_message_bytes)

    def listen(self) -> Endpoint:
        return listening(self._sock)

    def fileno(self) -> int:
        return self._sock.fileno()

    def may_sleep(self) -> bool:
        return True

    def knocked(self) -> bool:
        self._caller = accepted(self._sock)
        return self._caller is not None

    def admit(self) -> "DataLink | None":
        sock, self._caller = self._caller, None
        return None if sock is None else DataLink(sock, self._buffer, self._now)

    def close(self) -> None:
        self._sock.close()


class DataLink:
    """One connection of the data listener. A `Connection`."""

    def __init__(self, sock: socket.socket, buffer: ReceiveBuffer, now: Callable[[], float]):
        sock.setblocking(True)
        limit_waits(sock, receive_s=_WAIT_S, send_s=_SEND_S)
        self.sock = sock
        self._view = buffer.view
        self._limit = buffer.limit
        self._now = now
        self._n_held = 0
        self._n_wanted: int | None = None
        """Bytes of prefix and message, once the prefix is there."""
        self.first_byte_at = 0.0
        self.received_at = 0.0

    def fileno(self) -> int:
        return self.sock.fileno()

    def may_sleep(self) -> bool:
        return True

    def receive(self) -> bool:
        """Take what the socket holds; see `Connection`."""
        try:
            n = self._receive_some()
        except BlockingIOError:
            return False
        if n == 0:
            raise ConnectionResetError("closed by the peer")
        if not self._n_held:
            self.first_byte_at = self._now()
        self._n_held += n
        return self.has_message()

    def _receive_some(self) -> int:
        begin = _START + self._n_held
        if self._n_wanted is None:
            first = self._view[begin : begin + _FIRST_BYTES]
            return self.sock.recv_into(first, 0, socket.MSG_DONTWAIT)
        end = _START + self._n_wanted
        return self.sock.recv_into(self._view[begin:end], 0, socket.MSG_WAITALL)

    def has_message(self) -> bool:
        """Whether a whole message lies in the buffer (R34: perhaps of an earlier segment)."""
        if self._n_wanted is None:
            if self._n_held < PREFIX_BYTES:
                return False
            self._n_wanted = PREFIX_BYTES + message_bytes(self._view, _START, limit=self._limit)
        if self._n_held < self._n_wanted:
            # A wrong magic or body_len is told at once, not after the rest was waited for.
            if self._n_held >= PREFIX_BYTES + HEADER_BYTES:
                parse_header(self._view[_MESSAGE:], self._n_wanted - PREFIX_BYTES)
            return False
        self.received_at = self._now()
        return True

    def message(self) -> tuple[AppHeader, memoryview]:
        """The whole message's header and body; views that live until `consume`."""
        message = self.whole()
        return parse_header(message), message[HEADER_BYTES:]

    def whole(self) -> memoryview:
        """The whole message as it came, without its prefix; a view that lives until `consume`."""
        assert self._n_wanted is not None
        return self._view[_MESSAGE : _START + self._n_wanted]

    def consume(self) -> None:
        """Done with the message: what came behind it moves to the front (R34)."""
        assert self._n_wanted is not None
        n_behind = self._n_held - self._n_wanted
        if n_behind:
            begin = _START + self._n_wanted
            self._view[_START : _START + n_behind] = self._view[begin : begin + n_behind]
            self.first_byte_at = self._now()
        self._n_held, self._n_wanted = n_behind, None

    def send(self, reply: bytes) -> None:
        """Prefix and reply; OSError when the peer does not take them."""
        if self.sock.sendmsg((prefix(len(reply)), reply)) < PREFIX_BYTES + len(reply):
            raise TimeoutError(f"the peer did not take its reply for {_SEND_S:g} s")

    def close(self) -> None:
        self.sock.close()
