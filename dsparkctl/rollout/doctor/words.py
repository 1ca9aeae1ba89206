"""Numbers as the doctor's lines say them."""

from collections.abc import Sequence


def gib(n_bytes: int) -> str:
    """Bytes in GiB; in MiB where there is less than one."""
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 1 << 30 else f"{n_bytes / 2**20:.0f} MiB"


def version(numbers: Sequence[int]) -> str:
    return ".".join(map(str, numbers))


def some(names: Sequence[str], n_most: int = 3) -> str:
    """The first few, and how many more there are."""
    shown = ", ".join(names[:n_most])
    return shown if len(names) <= n_most else f"{shown} and {len(names) - n_most} more"
