"""The shadow policy's report (§10): agreement by position, first mismatch, margins."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsparkctl.client.shadow import ShadowReport


@pytest.fixture
def report() -> ShadowReport:
    return ShadowReport(5)


def test_agreement_is_counted_for_every_position_past_a_mismatch_too(report: ShadowReport) -> None:
    report.compare([1, 2, 3, 4, 5], [1, 2, 9, 4, 9], None, 5)
    report.compare([1, 2, 3, 4, 5], [1, 2, 3, 4, 5], None, 5)
    found = report.snapshot()
    assert found["compared"] == [2, 2, 2, 2, 2]
    assert found["agreed"] == [2, 2, 1, 2, 1]


def test_the_histogram_counts_the_first_mismatch_and_none_last(report: ShadowReport) -> None:
    report.compare([7, 2, 3, 4, 5], [1, 2, 9, 4, 9], None, 5)
    report.compare([1, 2, 3, 4, 7], [1, 2, 3, 4, 5], None, 5)
    report.compare([1, 2, 3, 4, 5], [1, 2, 3, 4, 5], None, 5)
    report.compare([1, 2, 3, 4, 5], [1, 2, 3, 4, 5], None, 5)
    assert report.snapshot()["first_mismatch"] == [1, 0, 0, 0, 1, 2]


def test_positions_that_are_not_compared_count_nowhere(report: ShadowReport) -> None:
    report.compare([1, 2, 0, 0, 0], [1, 9, 3, 4, 5], [1.0, 0.5, 0, 0, 0], 2)
    report.compare([1, 2, 0, 0, 0], [1, 2, 3, 4, 5], None, 2)
    found = report.snapshot()
    assert (found["compared"], found["agreed"]) == ([2, 2, 0, 0, 0], [2, 1, 0, 0, 0])
    assert found["first_mismatch"] == [0, 1, 0, 0, 0, 1]


def test_entries_without_positions_and_skipped_ones_are_not_compared(report: ShadowReport) -> None:
    report.compare([0] * 5, [1, 2, 3, 4, 5], None, 0)
    report.skip(3)
    found = report.snapshot()
    assert (found["entries_compared"], found["entries_not_compared"]) == (0, 4)
    assert found["first_mismatch"] == [0] * 6


def test_only_the_margin_at_the_first_mismatch_is_kept(report: ShadowReport) -> None:
    report.compare([1, 2, 3, 4, 5], [1, 9, 9, 4, 5], [9.0, 0.3, 0.0, 9.0, 9.0], 5)
    report.compare([1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [7.0] * 5, 5)
    report.compare([1, 2, 3, 4, 5], [9, 2, 3, 4, 5], None, 5)
    margin = report.snapshot()["margin"]
    assert margin == {"n": 1, "min": 0.3, "median": 0.3, "max": 0.3, "log2": {-1: 1}}


@pytest.mark.parametrize(
    ("margin", "bucket"),
    [(0.0, -20), (5e-324, -20), (0.25, -2), (0.26, -1), (0.5, -1), (1.0, 0), (3.0, 2), (1e30, 10)],
)
def test_a_bucket_holds_margins_up_to_its_power_of_two(
    report: ShadowReport, margin: float, bucket: int
) -> None:
    report.compare([1], [2], [margin], 1)
    assert report.snapshot()["margin"]["log2"] == {bucket: 1}


def test_the_median_is_the_upper_edge_of_the_middle_margins_bucket(report: ShadowReport) -> None:
    for margin in (100.0, 0.3, 0.2, 0.1):
        report.compare([1], [2], [margin], 1)
    assert report.snapshot()["margin"]["median"] == 0.25
    report.compare([1], [2], [1000.0], 1)
    assert report.snapshot()["margin"]["median"] == 0.5


@pytest.mark.parametrize("n", [-1, 6])
def test_more_positions_than_there_are_is_our_own_mistake(report: ShadowReport, n: int) -> None:
    with pytest.raises(ValueError, match="positions to compare"):
        report.compare([1] * 6, [1] * 6, None, n)
    with pytest.raises(ValueError, match="positions to compare"):
        report.compare([1] * 2, [1] * 5, None, 3)


def test_before_anything_was_compared_there_is_nothing_to_divide_by(report: ShadowReport) -> None:
    assert report.log_line().startswith("shadow: 0 entries compared, 0 not; agreement by")
    assert report.snapshot()["margin"]["median"] is None


def test_the_log_line_says_it_all_on_one_line(report: ShadowReport) -> None:
    report.compare([1, 2, 3, 4, 5], [1, 9, 3, 4, 5], [9.0, 0.3, 9.0, 9.0, 9.0], 5)
    report.compare([1, 2, 3, 4, 5], [1, 2, 3, 4, 5], None, 5)
    report.skip()
    assert report.log_line() == (
        "shadow: 2 entries compared, 1 not; agreement by position 100.0% 50.0% 100.0% 100.0% "
        "100.0%; first mismatch at [0, 1, 0, 0, 0], none 1; margin there 0.3 to 0.3, "
        "median at most 0.3"
    )


IDS = st.lists(st.integers(0, 2), min_size=5, max_size=5)
MARGINS = st.none() | st.lists(st.floats(0, 2.0**40, width=32), min_size=5, max_size=5)


@given(st.lists(st.tuples(IDS, IDS, MARGINS, st.integers(0, 5)), max_size=20))
def test_the_counts_always_add_up(
    entries: list[tuple[list[int], list[int], list[float] | None, int]],
) -> None:
    report = ShadowReport(5)
    margins = []
    for remote, local, margin, n in entries:
        report.compare(remote, local, margin, n)
        first = next((j for j in range(n) if remote[j] != local[j]), None)
        if first is not None and margin is not None:
            margins.append(margin[first])
    found: dict[str, Any] = json.loads(json.dumps(report.snapshot()))
    assert found["entries_compared"] + found["entries_not_compared"] == len(entries)
    assert sum(found["first_mismatch"]) == found["entries_compared"]
    assert found["compared"] == [sum(n > j for *_, n in entries) for j in range(5)]
    assert all(a <= c for a, c in zip(found["agreed"], found["compared"], strict=True))
    assert found["margin"]["n"] == sum(found["margin"]["log2"].values()) == len(margins)
    if margins:
        median = sorted(margins)[(len(margins) - 1) // 2]
        said = found["margin"]["median"]
        assert median <= said <= found["margin"]["max"] == max(margins)
        assert said <= max(2 * median, 2**-20) or median > 2**9
    assert "\n" not in report.log_line()
