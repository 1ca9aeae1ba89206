"""What stands before a message on each carrier, and what comes of it when a byte of that is wrong.

Decides how a stream's length prefix and ofl's immediate word are read at either end (§5). Refuses
to know which byte was changed, and when.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from dsparkctl.contract.errors import WireError
from dsparkctl.contract.framing import MAX_REPLY_BYTES, PREFIX_BYTES, message_bytes, prefix

Receive = Callable[[bytes], bytes | None]
"""A worker's reply to prefix and message; None when it hangs up."""


class Unreadable(Exception):  # noqa: N818 -- what happened
    """The link breaks over what came; one line."""


class NotWhole(Exception):  # noqa: N818
    """What came is less than it said: rank 0 waits for the rest until its deadline."""


class Taken(NamedTuple):
    """A message as rank 0 takes it, and whether something lies behind it."""

    message: bytes
    has_stray: bool


class Carriage(Protocol):
    """Four bytes before each message."""

    def of_request(self, message: bytes) -> bytes:
        """What rank 0 puts before it."""

    def of_reply(self, message: bytes) -> bytes:
        """What the worker puts before it."""

    def at_the_worker(self, came: bytes, receive: Receive) -> bytes | None:
        """The reply to what came, or None when the connection ends."""

    def at_rank_0(self, came: bytes, asked: bytes) -> Taken:
        """The reply; Unreadable or NotWhole."""


class Stream:
    """The contract's TCP stub: a length."""

    def of_request(self, message: bytes) -> bytes:
        return prefix(len(message))

    of_reply = of_request

    def at_the_worker(self, came: bytes, receive: Receive) -> bytes | None:
        return receive(came)

    def at_rank_0(self, came: bytes, asked: bytes) -> Taken:
        """As `net.tcp`: a wrong length waits in vain, or leaves strays behind."""
        n_held = len(came) - PREFIX_BYTES
        try:
            length = message_bytes(came, limit=MAX_REPLY_BYTES)
        except WireError as error:
            raise Unreadable(f"the answer has no DSP1 header: {error}") from None
        if length > n_held:
            raise NotWhole
        return Taken(came[PREFIX_BYTES : PREFIX_BYTES + length], length < n_held)


_OP_SHIFT: Final = 24
_LENGTH_SHIFT: Final = 15


class Ofl:
    """ofl: op and generation before a request, length and generation before a reply, which lies in
    a range that held the reply before it."""

    def __init__(self) -> None:
        self._range = bytes(MAX_REPLY_BYTES)

    def of_request(self, message: bytes) -> bytes:
        return _word(min(message[6], 255) << _OP_SHIFT | _generation(message, _OP_SHIFT))

    def of_reply(self, message: bytes) -> bytes:
        return _word(len(message) << _LENGTH_SHIFT | _generation(message, _LENGTH_SHIFT))

    def at_the_worker(self, came: bytes, receive: Receive) -> bytes | None:
        message = came[PREFIX_BYTES:]
        if came[3]:
            return receive(prefix(len(message)) + message)
        return message if len(message) <= MAX_REPLY_BYTES else None  # op 0, the transport's echo

    def at_rank_0(self, came: bytes, asked: bytes) -> Taken:
        """As `net.fabric`: a wrong length cuts the reply short, or lets an older one show."""
        word, message = int.from_bytes(came[:PREFIX_BYTES], "little"), came[PREFIX_BYTES:]
        self._range = message + self._range[len(message) :]
        if word & (1 << _LENGTH_SHIFT) - 1 != _generation(asked, _LENGTH_SHIFT):
            raise Unreadable("a reply came to another request")
        length = word >> _LENGTH_SHIFT
        if length > MAX_REPLY_BYTES:
            raise Unreadable(f"a reply of {length} bytes, more than was agreed")
        return Taken(self._range[:length], False)


def _generation(message: bytes, n_bits: int) -> int:
    """The lowest bits of AppHeader.seq."""
    return int.from_bytes(message[8:16], "little") & ((1 << n_bits) - 1)


def _word(value: int) -> bytes:
    return value.to_bytes(PREFIX_BYTES, "little")
