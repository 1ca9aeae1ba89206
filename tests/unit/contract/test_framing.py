"""Messages on a TCP stream (§5)."""

import pytest

from dsparkctl.contract.errors import WireError
from dsparkctl.contract.framing import (
    HEADER_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_REPLY_BYTES,
    aligned,
    message_bytes,
    prefix,
)


def test_the_prefix_is_a_little_endian_u32() -> None:
    """§5."""
    assert prefix(0x01020304) == b"\4\3\2\1"


@pytest.mark.parametrize("length", [HEADER_BYTES, HEADER_BYTES + 1, MAX_MESSAGE_BYTES])
def test_a_bearable_length_is_read_at_any_offset(length: int) -> None:
    """§5: AppHeader and body, 16 MiB at most."""
    assert message_bytes(b"ab" + prefix(length), 2) == length


@pytest.mark.parametrize("length", [0, 1, HEADER_BYTES - 1, MAX_MESSAGE_BYTES + 1, 0xFFFFFFFF])
def test_a_length_that_no_message_has_loses_the_framing(length: int) -> None:
    """R32, R33: close at once, do not wait or allocate."""
    with pytest.raises(WireError, match=f"{length} bytes") as caught:
        message_bytes(prefix(length))
    assert (caught.value.status, caught.value.field) == (None, "length prefix")


def test_a_listener_may_bear_less() -> None:
    """R33: the limit that HELLO settled; §5: 64 KiB of a reply."""
    assert message_bytes(prefix(MAX_REPLY_BYTES), limit=MAX_REPLY_BYTES) == MAX_REPLY_BYTES
    with pytest.raises(WireError):
        message_bytes(prefix(MAX_REPLY_BYTES + 1), limit=MAX_REPLY_BYTES)


@pytest.mark.parametrize(("n_bytes", "expected"), [(0, 0), (1, 64), (64, 64), (65, 128), (96, 128)])
def test_the_row_block_starts_at_the_next_multiple_of_64(n_bytes: int, expected: int) -> None:
    """§6.3."""
    assert aligned(n_bytes) == expected
