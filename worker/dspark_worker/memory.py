"""This process's resident memory, and whether it grows."""

import resource
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Growth(NamedTuple):
    """A line through what was seen."""

    bytes_per_round: float
    first_bytes: int
    last_bytes: int


def rss_bytes() -> int:
    """Resident memory now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def growth(seen: Sequence[tuple[int, int]]) -> Growth:
    """The least-squares line through (round, bytes), which must be two at least."""
    n = len(seen)
    mean_x = sum(x for x, _ in seen) / n
    mean_y = sum(y for _, y in seen) / n
    spread = sum((x - mean_x) ** 2 for x, _ in seen)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in seen) / spread
    return Growth(slope, seen[0][1], seen[-1][1])
