"""One connection to the examined listener, and what can come back on it.

Decides whether an answer is a reply, an end, a silence or something without meaning. Never waits
beyond its deadline and never believes a length. Refuses to know what a message asks.
"""

import socket
import time
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from dsparkctl.conform.stream import Stream
from dsparkctl.contract.codes import FrameStatus, Op
from dsparkctl.contract.errors import WireError
from dsparkctl.contract.framing import (
    HEADER_BYTES,
    MAX_REPLY_BYTES,
    PREFIX_BYTES,
    message_bytes,
    prefix,
)
from dsparkctl.contract.messages import parse_header
from dsparkctl.contract.records import AppHeader


class Kind(Enum):
    """What came back."""

    REPLY = "a reply"
    CLOSED = "the connection was closed"
    SILENT = "nothing"
    GARBAGE = "no message of the contract"


class Answer(NamedTuple):
    """What came back, and, if it is a reply, its parts."""

    kind: Kind
    header: AppHeader | None = None
    body: bytes = b""
    detail: str = ""

    @property
    def status(self) -> int | None:
        """Of a reply."""
        return self.header.status if self.header is not None else None

    def __str__(self) -> str:
        if self.header is None:
            return f"{self.kind.value}{f': {self.detail}' if self.detail else ''}"
        return f"{status_name(self.header.status)}, {len(self.body)} bytes"


class NoAnswer(Exception):  # noqa: N818 -- what happened
    """A worker that gave no reply where one is due; one line."""


Dial = Callable[[float], Stream]
"""A connection to the examined listener within so many seconds; OSError when there is none."""


class Line:
    """A connection that was accepted. `n_replies` counts what had a DSP1 header, `n_other` what had
    none."""

    def __init__(self, dial: Dial, timeout_s: float) -> None:
        """NoAnswer when nobody accepts it."""
        self.timeout_s = timeout_s
        self.n_replies = 0
        self.n_other = 0
        try:
            self._sock = dial(timeout_s)
        except OSError as error:
            raise NoAnswer(f"no connection: {error.strerror or error}") from None

    def put(self, data: bytes) -> None:
        """Bytes as they are, with no prefix. A peer that is gone shows when it is listened to."""
        self._sock.settimeout(self.timeout_s)
        try:
            self._sock.sendall(data)
        except OSError:
            return

    def send(self, message: bytes) -> None:
        """One framed message (§5)."""
        self.put(prefix(len(message)) + message)

    def ask(self, message: bytes) -> Answer:
        """One framed message, and what comes back."""
        self.send(message)
        return self.receive()

    def receive(self, timeout_s: float | None = None) -> Answer:
        """What comes next."""
        end_s = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        head = self._take(PREFIX_BYTES, end_s)
        if isinstance(head, Answer):
            return head
        self.n_other += 1  # until it turns out to be one of the contract's
        try:
            n_bytes = message_bytes(head, limit=MAX_REPLY_BYTES)
        except WireError as error:
            return Answer(Kind.GARBAGE, detail=str(error))
        message = self._take(n_bytes, end_s)
        if isinstance(message, Answer):
            return message._replace(detail=f"in the middle of a reply of {n_bytes} bytes")
        try:
            header = parse_header(message)
        except WireError as error:
            return Answer(Kind.GARBAGE, detail=str(error))
        self.n_replies += 1
        self.n_other -= 1
        return Answer(Kind.REPLY, header, message[HEADER_BYTES:])

    def has_stray(self, wait_s: float = 0.05) -> bool:
        """Whether anything lies behind the last reply (§5: one reply a request)."""
        self._sock.settimeout(wait_s)
        try:
            return bool(self._sock.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def close(self) -> None:
        self._sock.close()

    def _take(self, n_bytes: int, end_s: float) -> bytes | Answer:
        data = bytearray()
        while len(data) < n_bytes:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return Answer(Kind.SILENT, detail=f"within {self.timeout_s:g} s")
            self._sock.settimeout(left_s)
            try:
                more = self._sock.recv(n_bytes - len(data))
            except TimeoutError:
                continue
            except OSError:
                more = b""
            if not more:
                return Answer(Kind.CLOSED)
            data += more
        return bytes(data)


def status_name(status: int) -> str:
    """§9.1's name of a frame status, or the number."""
    known = FrameStatus._value2member_map_
    return FrameStatus(status).name if status in known else f"status {status}"


def op_name(op: int) -> str:
    return Op(op).name if op in Op._value2member_map_ else f"op {op}"
