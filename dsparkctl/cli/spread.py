"""How a handful of durations is spread: the percentiles every command speaks of, and a histogram.

Decides what p50 means (nearest rank) and where a histogram's bins lie. Pure.
"""

import math
from collections.abc import Sequence
from typing import Final

_BAR_CELLS: Final = 40
_MAX_BINS: Final = 10


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of values in ascending order; there must be at least one."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def summary(values: Sequence[float], percents: Sequence[int] = (50, 90, 99)) -> dict[str, float]:
    """min, the percentiles and max of the values, in their unit; empty when there are none."""
    if not values:
        return {}
    ordered = sorted(values)
    middle = {f"p{percent}": percentile(ordered, percent) for percent in percents}
    found = {"min": ordered[0], **middle, "max": ordered[-1]}
    return {name: round(value, 1) for name, value in found.items()}


def histogram(values_us: Sequence[float]) -> list[str]:
    """A line a bin, from the shortest duration (µs) to the longest; bins grow by a constant factor.

    Round trips have a long tail: bins of equal width would show one bar and nothing else.
    """
    low, high = max(0.1, min(values_us)), max(0.1, *values_us)
    n_bins = min(_MAX_BINS, max(1, math.ceil(10 * math.log2(high / low))))
    factor = (high / low) ** (1 / n_bins) if high > low else 1.0
    counts = [0] * n_bins
    for value in values_us:
        at = int(math.log(max(low, value) / low) / math.log(factor)) if factor > 1 else 0
        counts[min(at, n_bins - 1)] += 1
    most = max(counts)
    return [
        f"{low * factor**i:10.1f} us  {count:6d}  {'#' * math.ceil(count / most * _BAR_CELLS)}"
        for i, count in enumerate(counts)
    ]
