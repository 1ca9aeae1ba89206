"""How a message lies on a TCP stream (§5): a u32 length, then AppHeader and body.

Decides which lengths are bearable. Knows no socket and no message.
"""

import struct
from typing import Final

from dsparkctl.contract.errors import WireError
from dsparkctl.contract.layout import Buffer

PREFIX_BYTES: Final = 4
HEADER_BYTES: Final = 32

ROW_ALIGN: Final = 64
"""The row block starts at a multiple of this from the start of the body (§6.3)."""

MAX_MESSAGE_BYTES: Final = 16 << 20
"""§5: `max_req_bytes`, AppHeader included; nothing longer is waited for (R33)."""

MAX_REPLY_BYTES: Final = 64 << 10
"""§5: `max_resp_bytes`."""

_LENGTH: Final = struct.Struct("<I")


def prefix(message_bytes: int) -> bytes:
    """The length prefix of a message of `message_bytes` (AppHeader and body)."""
    return _LENGTH.pack(message_bytes)


def message_bytes(data: Buffer, offset: int = 0, *, limit: int = MAX_MESSAGE_BYTES) -> int:
    """The length that the prefix at `offset` announces.

    Raises WireError without a status when no message can have it: the framing is lost (R32, R33).
    """
    (length,) = _LENGTH.unpack_from(data, offset)
    if not HEADER_BYTES <= length <= limit:
        raise WireError(
            None, "length prefix", 0, f"{length} bytes, expected {HEADER_BYTES} to {limit}"
        )
    return int(length)


def aligned(n_bytes: int) -> int:
    """The next multiple of 64 at or behind `n_bytes`."""
    return (n_bytes + ROW_ALIGN - 1) // ROW_ALIGN * ROW_ALIGN
