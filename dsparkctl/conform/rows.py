"""Tap rows that are made up: bf16 values of either sign between 0.5 and 2, the same for the same
name and position (§3). Whatever is said of a window can so be said of its content too.
"""

import random
from collections.abc import Iterable
from functools import lru_cache

_SIGNED = bytes(0x3F if value < 0x80 else 0xBF for value in range(256))
"""The upper byte of a bf16 value: a sign and, with the lower one's top bit, 2**-1 or 2**0."""
NOT_A_NUMBER = b"\xc0\x7f"


@lru_cache(maxsize=4096)
def row(name: str, pos: int, row_bytes: int) -> bytes:
    """One row of `row_bytes`."""
    dice = random.Random(f"{name}/{pos}")
    made = bytearray(row_bytes)
    made[0::2] = dice.randbytes(row_bytes // 2)
    made[1::2] = dice.randbytes(row_bytes // 2).translate(_SIGNED)
    return bytes(made)


def block(name: str, positions: Iterable[int], row_bytes: int) -> bytes:
    """The rows of some positions, in their order."""
    return b"".join(row(name, pos, row_bytes) for pos in positions)
