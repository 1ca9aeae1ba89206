"""Order of a wrapping u32 (§7.1): generations are compared by serial-number arithmetic."""


def is_older(a: int, b: int) -> bool:
    """Whether generation `a` comes before `b`; a distance of exactly 2**31 is older (R25)."""
    return ((a - b) & 0xFFFFFFFF) >= 0x80000000


def following(a: int) -> int:
    """The generation after `a`, wrapping at 2**32."""
    return (a + 1) & 0xFFFFFFFF
