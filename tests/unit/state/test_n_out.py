"""The conditions under which rank 0 asks for fewer than N positions (§6.3, v1.3)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsparkctl.state.n_out import Caps, ScheduleError, caps, n_out, parse_schedule

LIVE = [[1, 2, 5], [3, 4, 4]]


def live(**changed: Any) -> Caps:
    given = {
        "schedule": LIVE,
        "depth_policy": "conf",
        "has_depth_file": False,
        "policy": "capacity",
        "n_out_enabled": True,
        "num_spec": 5,
        **changed,
    }
    return caps(**given)


def asked(found: Caps) -> list[int]:
    return [n_out(found, n) for n in range(1, 5)]


def test_the_live_configuration_asks_for_four_at_three_and_four_requests() -> None:
    assert asked(live()) == [5, 5, 4, 4]
    assert live().reason == ""


@pytest.mark.parametrize("mode", ["conf", "confb", "confr", "conf:0.6", "confb:1:2"])
def test_modes_that_mask_past_the_cap_allow_it(mode: str) -> None:
    assert asked(live(depth_policy=mode)) == [5, 5, 4, 4]


@pytest.mark.parametrize(
    "mode", ["off", "fixed:3", "fixed", "", None, "CONF", "confx", " conf", "con", ":conf"]
)
def test_any_other_depth_mode_asks_for_all(mode: str | None) -> None:
    found = live(depth_policy=mode)
    assert asked(found) == [0, 0, 0, 0]
    assert "depth mode" in found.reason


@pytest.mark.parametrize("schedule", [None, [], ()])
def test_without_a_dynamic_schedule_all_are_asked_for(schedule: Any) -> None:
    found = live(schedule=schedule)
    assert asked(found) == [0, 0, 0, 0]
    assert "schedule" in found.reason


def test_a_depth_file_could_switch_the_mode_so_all_are_asked_for() -> None:
    found = live(has_depth_file=True)
    assert asked(found) == [0, 0, 0, 0]
    assert "depth file" in found.reason


def test_shadow_always_asks_for_all() -> None:
    found = live(policy="shadow")
    assert asked(found) == [0, 0, 0, 0]
    assert "shadow" in found.reason


def test_resilience_asks_like_capacity() -> None:
    assert live(policy="resilience") == live()


def test_n_out_turned_off_asks_for_all() -> None:
    found = live(n_out_enabled=False)
    assert asked(found) == [0, 0, 0, 0]
    assert found.reason == "turned off"


@pytest.mark.parametrize("n_requests", [0, 5, 1000])
def test_outside_the_schedule_all_are_asked_for(n_requests: int) -> None:
    assert n_out(live(), n_requests) == 0


def test_a_gap_in_the_schedule_asks_for_all() -> None:
    found = live(schedule=[(4, 9, 2), (1, 2, 3)])
    assert [n_out(found, n) for n in range(1, 11)] == [3, 3, 0, 2, 2, 2, 2, 2, 2, 0]


@pytest.mark.parametrize(
    "schedule",
    [
        {"1": 5},
        "[[1,2,5]]",
        7,
        [1, 2, 5],
        [[1, 2]],
        [[1, 2, 5, 6]],
        [[1, 2, 5.0]],
        [[1, True, 5]],
        [["1", 2, 5]],
        [[1, 2, None]],
        [[2, 1, 5]],
        [[0, 2, 5]],
        [[-1, 2, 5]],
        [[1, 2, 6]],
        [[1, 2, -1]],
        [[1, 3, 5], [3, 4, 4]],
        [[3, 4, 4], [1, 9, 5]],
        [["x" * 10_000, 1, 1]],
    ],
)
def test_a_schedule_that_cannot_be_meant_is_one_line(schedule: Any) -> None:
    with pytest.raises(ScheduleError) as caught:
        live(schedule=schedule)
    assert str(caught.value).startswith("schedule: ")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 160


@pytest.mark.parametrize("off", [{"n_out_enabled": False}, {"policy": "shadow"}])
def test_a_bad_schedule_is_found_even_where_it_is_not_used(off: dict[str, Any]) -> None:
    with pytest.raises(ScheduleError):
        live(schedule=[[2, 1, 5]], **off)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(-1, 6)), max_size=4))
def test_a_schedule_that_parses_gives_every_count_its_only_range(
    schedule: list[tuple[int, int, int]],
) -> None:
    try:
        ranges = parse_schedule(schedule, 5)
    except ScheduleError:
        return
    for n in range(11):
        ks = [k for lo, hi, k in schedule if lo <= n <= hi]
        assert len(ks) <= 1
        assert n_out(Caps(ranges, ""), n) == (ks[0] if ks else 0)
