"""The alarms in words (issue 6, part 3): the same troubles as examples/prometheus."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsparkctl.cli.alarms import SPAN_S, alarms, differences
from dsparkctl.cli.trend import Reading

BEFORE: dict[str, Any] = {
    "pid": 7, "uptime_s": 100.0, "steps": 1000, "hellos": 1, "drafted_requests": 1000,
    "partial_windows": 0, "bad_entries": 0, "internal_entries": 0, "self_test_ok": True,
    "recv_to_send_us_p99": 3000.0, "drafter_identity": "a",
    "verified_per_position": [1000, 1000, 1000], "accepted_per_position": [900, 700, 500],
}  # fmt: skip
LATER: dict[str, Any] = {
    **BEFORE, "uptime_s": 130.0, "steps": 1100, "drafted_requests": 1100,
    "verified_per_position": [1100, 1100, 1100], "accepted_per_position": [990, 770, 550],
}  # fmt: skip


def raised(later: dict[str, Any], *, after_s: float = 30.0) -> list[str]:
    return alarms([Reading(BEFORE, 0.0), Reading({**LATER, **later}, after_s)])


def test_a_worker_that_is_well_raises_nothing() -> None:
    assert raised({}) == []
    assert alarms([Reading(BEFORE, 0.0)]) == []


def test_an_idle_worker_raises_nothing() -> None:
    assert alarms([Reading(BEFORE, 0.0), Reading({**BEFORE, "uptime_s": 130.0}, 30.0)]) == []


@pytest.mark.parametrize(
    ("later", "words"),
    [
        ({"accepted_per_position": [910, 710, 510]}, "of first drafts only 10% are accepted"),
        ({"accepted_per_position": [990, 701, 501]}, "third ones are never accepted"),
        ({"partial_windows": 20}, "20% of drafts see a short window"),
        ({"hellos": 3, "steps": 1000}, "says HELLO and sends no STEP"),
        ({"bad_entries": 2}, "2 entries were answered BAD_ENTRY"),
        ({"internal_entries": 1}, "1 entries were answered INTERNAL"),
        ({"self_test_ok": False}, "self-test does not come out"),
        ({"recv_to_send_us_p99": 45_000.0}, "one STEP in a hundred takes 45 ms"),
        ({"drafter_identity": "b"}, "drafter_identity is another"),
    ],
)
def test_each_trouble_has_one_line(later: dict[str, Any], words: str) -> None:
    (line,) = raised(later)
    assert words in line


def test_a_worker_that_starts_again_and_again_is_told_and_one_start_is_not() -> None:
    lives = [Reading({**LATER, "pid": pid, "uptime_s": 1.0}, float(pid)) for pid in (8, 9, 10)]
    assert alarms(lives[:2]) == []
    assert alarms(lives) == ["the worker started 2 times in a minute: dsparkctl logs says why"]


def test_what_is_older_than_a_minute_counts_no_more() -> None:
    assert raised({"partial_windows": 20}, after_s=SPAN_S + 1) == []


def test_shares_of_a_few_drafts_say_nothing() -> None:
    few = {"verified_per_position": [1040] * 3, "accepted_per_position": [900, 700, 500]}
    assert raised(few) == []


values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers())
)


@given(st.dictionaries(st.sampled_from(sorted(BEFORE)), values),
       st.dictionaries(st.sampled_from(sorted(BEFORE)), values))  # fmt: skip
def test_whatever_a_worker_says_is_no_error_here(one: dict[str, Any], two: dict[str, Any]) -> None:
    """§6.5: keys are only suggestions."""
    alarms([Reading(one, 0.0), Reading(two, 1.0)])
    differences(one, two)


def test_a_good_state_is_compared_by_identity_time_and_acceptance() -> None:
    good = {
        "drafter_identity": "a", "worker_us_p50": 1000.0, "draft_us_p50": 900.0,
        "acceptance_per_position": [0.9, 0.7, 0.5], "verified_per_position": [1000, 1000, 10],
    }  # fmt: skip
    now = {**good, "drafter_identity": "b", "worker_us_p50": 1600.0,
           "acceptance_per_position": [0.85, 0.5, 0.0]}  # fmt: skip
    assert all(row[3] == "" for row in differences(good, good))
    verdicts = {key: verdict for key, _, _, verdict in differences(good, now) if verdict}
    assert verdicts == {
        "drafter_identity": "other",
        "worker_us_p50": "1.6 times slower",
        "acceptance, position 1": "fewer accepted",
    }
