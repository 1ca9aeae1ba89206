"""What STATS counts and times (§6.5, R35)."""

import pytest

from dspark_worker.stats import SPLIT, Stats, percentile
from dsparkctl.contract.codes import NEED_DRAFT, NEW_GEN, RESYNC, FrameStatus
from dsparkctl.contract.records import ReqEntry

OK, PARTIAL, STALE, BAD, INTERNAL = range(5)


def entry(*, n_rows: int = 1, k: int = 0, flags: int = NEED_DRAFT) -> ReqEntry:
    return ReqEntry(0, flags, k, 0, 1, 0, n_rows, 0, n_rows)


def test_a_fresh_worker_has_every_key_and_no_number_that_it_cannot_know() -> None:
    found = Stats(3).snapshot(5.0)
    assert found["acceptance_per_position"] == [None] * 3
    assert found["accepted_hist"] == [0] * 4
    assert (found["last_step_age_s"], found["self_test_ok"], found["self_test_age_s"]) == (
        *(None, None, None),
    )
    assert all(found[f"{part}_us_p{p}"] is None for part in SPLIT for p in (50, 99))


@pytest.mark.parametrize(
    ("status", "key"),
    [
        (PARTIAL, "partial_windows"),
        (STALE, "stale_generation"),
        (BAD, "bad_entries"),
        (INTERNAL, "internal_entries"),
    ],
)
def test_r35_one_entry_moves_the_key_of_its_status_by_one(status: int, key: str) -> None:
    stats = Stats(3)
    before = stats.snapshot(0.0)
    stats.stepped([entry(n_rows=2)], [status], 0.0)
    after = stats.snapshot(0.0)
    moved = {k: after[k] - before[k] for k in before if type(before[k]) is int and k != "rows"}
    expected = {"steps": 1, key: 1} | ({"drafted_requests": 1} if status == PARTIAL else {})
    assert {k: n for k, n in moved.items() if n} == expected
    assert after["rows"] == (2 if status == PARTIAL else 0)


def test_6_5_acceptance_is_rows_less_one_of_k_window() -> None:
    """k_window drafts were verified; the last row is the bonus token's."""
    stats = Stats(3)
    for n_rows, k in ((1, 3), (3, 3), (4, 3), (2, 1)):
        stats.stepped([entry(n_rows=n_rows, k=k)], [OK], 0.0)
    found = stats.snapshot(0.0)
    assert found["accepted_hist"] == [1, 1, 1, 1]
    assert found["verified_per_position"] == [4, 3, 3]
    assert found["accepted_per_position"] == [3, 2, 1]
    assert found["acceptance_per_position"] == [0.75, 0.6667, 0.3333]


@pytest.mark.parametrize(
    "said",
    [
        entry(n_rows=3, k=0),  # prefill
        entry(n_rows=0, k=2),  # no rows at all: −1 accepted
        entry(n_rows=4, k=2),  # more than were drafted
        entry(n_rows=2, k=2, flags=NEED_DRAFT | NEW_GEN),
        entry(n_rows=2, k=2, flags=NEED_DRAFT | RESYNC),
    ],
)
def test_6_5_rows_that_say_nothing_of_drafts_are_not_judged(said: ReqEntry) -> None:
    stats = Stats(3)
    stats.stepped([said], [OK], 0.0)
    assert sum(stats.snapshot(0.0)["accepted_hist"]) == 0


def test_6_5_k_window_above_n_counts_n_positions() -> None:
    stats = Stats(3)
    stats.stepped([entry(n_rows=4, k=255)], [OK], 0.0)
    found = stats.snapshot(0.0)
    assert found["accepted_per_position"] == found["verified_per_position"] == [1, 1, 1]


def test_entries_that_were_not_applied_are_not_judged() -> None:
    stats = Stats(3)
    for status in (STALE, BAD, INTERNAL):
        stats.stepped([entry(n_rows=2, k=2)], [status], 0.0)
    assert stats.snapshot(0.0)["verified_per_position"] == [0, 0, 0]


def test_ages_count_from_the_last_event_and_are_never_negative() -> None:
    stats = Stats(3)
    stats.stepped([entry()], [OK], 10.0)
    stats.self_tested(False, 11.0)
    found = stats.snapshot(12.5)
    assert (found["last_step_age_s"], found["self_test_age_s"]) == (2.5, 1.5)
    assert found["self_test_ok"] is False
    assert stats.snapshot(1.0)["last_step_age_s"] == 0.0


def test_refused_frames_are_counted_by_name() -> None:
    stats = Stats(3)
    for status in (FrameStatus.CAPACITY, FrameStatus.CAPACITY, FrameStatus.MALFORMED):
        stats.refused(status)
    assert stats.snapshot(0.0)["frames_refused"] == {"CAPACITY": 2, "MALFORMED": 1}


def test_durations_are_percentiles_in_microseconds_of_a_bounded_past() -> None:
    stats = Stats(3)
    for _ in range(5000):
        stats.took("wire", 1.0)
    for i in range(2048):
        stats.took("wire", (i + 1) * 1e-6)
    found = stats.snapshot(0.0)
    assert (found["wire_us_p50"], found["wire_us_p99"]) == (1024.0, 2028.0)


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1.0), (1, 1.0), (25, 1.0), (26, 2.0), (50, 2.0), (100, 4.0)]
)
def test_percentiles_are_nearest_rank(percent: float, expected: float) -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], percent) == expected


def test_the_percentile_of_one_value_is_that_value() -> None:
    assert percentile([7.0], 99) == 7.0
