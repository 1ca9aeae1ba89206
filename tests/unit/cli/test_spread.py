"""Percentiles and histograms of round trips."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsparkctl.cli.spread import histogram, percentile, summary

DURATIONS = st.lists(st.floats(0, 1e9), min_size=1, max_size=200)


def test_a_percentile_is_the_nearest_rank() -> None:
    ordered = [float(n) for n in range(1, 101)]
    assert [percentile(ordered, p) for p in (1, 50, 90, 99, 100)] == [1, 50, 90, 99, 100]
    assert percentile([7.0], 50) == percentile([7.0], 99) == 7.0


def test_a_summary_goes_from_min_to_max_and_is_empty_without_values() -> None:
    values = [5.0, 1.0, 3.0, 2.0, 4.04]
    assert summary(values) == {"min": 1.0, "p50": 3.0, "p90": 5.0, "p99": 5.0, "max": 5.0}
    assert list(summary(values, (50, 99))) == ["min", "p50", "p99", "max"]
    assert summary([]) == {}


@given(DURATIONS)
def test_a_histogram_counts_every_duration_once(values: list[float]) -> None:
    lines = histogram(values)
    assert 1 <= len(lines) <= 10
    assert sum(int(line.split()[2]) for line in lines) == len(values)
    assert all(len(line) < 80 for line in lines)
    assert max(line.count("#") for line in lines) == 40


def test_equal_durations_are_one_bar() -> None:
    (line,) = histogram([50.0] * 9)
    assert line.split()[:3] == ["50.0", "us", "9"]


def test_a_long_tail_does_not_squeeze_the_rest_into_one_bar() -> None:
    lines = histogram([*range(50, 100), 20_000.0])
    assert len([line for line in lines if "#" in line]) >= 3
    assert int(lines[-1].split()[2]) == 1


@pytest.mark.parametrize("value", [0.0, 1e-9])
def test_a_duration_of_nothing_has_a_bin_too(value: float) -> None:
    assert sum(int(line.split()[2]) for line in histogram([value, 10.0])) == 2
