"""The depth policy `conf` (§2, §6.3, §10)."""

import math

from hypothesis import given
from hypothesis import strategies as st

from dsparkctl.engine.depth import depth

CONFIDENCE = st.floats(0, 1)


def test_zero_confidence_means_depth_0_as_every_fallback_writes_it() -> None:
    """§10: target-only cost."""
    assert depth([0.0] * 5, 5) == 0


def test_full_confidence_is_verified_up_to_the_cap() -> None:
    assert depth([1.0] * 5, 5) == 5
    assert depth([1.0] * 5, 4) == 4


def test_positions_from_the_cap_on_do_not_count_whatever_they_hold() -> None:
    """§6.3: a worker that was asked for n_out positions leaves zeros behind them."""
    assert depth([0.9, 0.9, 0.9, 0.9, 0.0], 4) == depth([0.9, 0.9, 0.9, 0.9, 1.0], 4) == 4


def test_the_chance_to_get_there_counts_not_the_chance_of_one_step() -> None:
    assert depth([0.5] * 5, 5, threshold=0.2) == 2
    assert depth([0.5, 0.1, 1.0, 1.0, 1.0], 5, threshold=0.2) == 1


def test_a_confidence_that_is_no_number_ends_the_drafts() -> None:
    assert depth([1.0, math.nan, 1.0], 3) == 1


@given(st.lists(CONFIDENCE, max_size=8), st.integers(0, 8), st.floats(0.01, 1))
def test_the_depth_is_the_longest_prefix_that_is_likely_enough(
    confidence: list[float], cap: int, threshold: float
) -> None:
    products = [math.prod(confidence[: n + 1]) for n in range(min(cap, len(confidence)))]
    expected = sum(product >= threshold for product in products)
    assert depth(confidence, cap, threshold) == expected
