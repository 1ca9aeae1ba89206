"""What two STATS answers say together (§6.5, R35), and that odd ones are borne."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsparkctl.cli.trend import (
    Reading,
    StatsError,
    one_line,
    parse_stats,
    rates,
    started_again,
    table_rows,
    value_text,
)

SOUND: dict[str, Any] = {
    "pid": 7,
    "uptime_s": 100.0,
    "steps": 1000,
    "rows": 4000,
    "drafted_requests": 900,
    "acceptance_per_position": [0.913, 0.8, None],
    "draft_us_p50": 1234.5,
    "draft_us_p99": 2000.0,
    "last_step_age_s": 0.25,
    "self_test_ok": True,
    "self_test_age_s": 12.0,
    "session": 0xBEEF,
    "bad_entries": 3,
}
"""As a worker of ours answers, in part."""


def later(by_s: float = 2.0, **changes: Any) -> tuple[Reading, Reading]:
    """A sound reading, and one `by_s` later with these changes."""
    uptime = {"uptime_s": SOUND["uptime_s"] + by_s}
    return Reading(SOUND, 50.0), Reading({**SOUND, **uptime, **changes}, 50.0 + by_s)


# --- parsing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"not json", b"\xff\xfe", b"{", b'{"a": NaN}', b'{"a": -Infinity}', b'{"a": 1e999}'),
        b"[" * 30_000,
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": ' + b"9" * 400 + b"}",
    ],
)
def test_what_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(StatsError, match="is not JSON"):
        parse_stats(body)


@pytest.mark.parametrize("body", [b"[]", b"1", b"null", b'"text"'])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(StatsError, match="no object"):
        parse_stats(body)


def test_an_object_is_taken_as_it_is() -> None:
    assert parse_stats(json.dumps(SOUND).encode()) == SOUND


# --- comparing ------------------------------------------------------------------------------------


def test_rates_are_events_per_second_of_our_own_clock() -> None:
    before, now = later(2.0, steps=1024, rows=4100, drafted_requests=901)
    assert rates(before, now) == {"steps_per_s": 12.0, "rows_per_s": 50.0, "drafts_per_s": 0.5}


def test_a_first_reading_has_no_rates() -> None:
    assert set(rates(None, Reading(SOUND, 1.0)).values()) == {None}


@pytest.mark.parametrize(
    "changes",
    [{"pid": 8, "steps": 2000}, {"uptime_s": 1.0, "steps": 2000}, {"pid": None, "steps": 2000}],
)
def test_a_worker_that_started_again_is_noticed_and_has_no_rates(changes: dict[str, Any]) -> None:
    before, now = later(**changes)
    assert started_again(before, now)
    assert set(rates(before, now).values()) == {None}


def test_a_worker_that_goes_on_is_not_taken_for_another() -> None:
    assert not started_again(*later())
    assert not started_again(*later(uptime_s=None))


def test_a_counter_that_fell_or_is_none_has_no_rate() -> None:
    """Keys are only suggestions (§6.5)."""
    assert rates(*later(steps=1))["steps_per_s"] is None
    assert rates(*later(steps="many"))["steps_per_s"] is None
    assert rates(*later(steps=True))["steps_per_s"] is None
    assert rates(*later(steps=1))["rows_per_s"] == 0.0


# --- wording --------------------------------------------------------------------------------------


def test_the_table_has_a_line_a_number_with_its_unit() -> None:
    rows = {name: (value, unit) for name, value, unit in table_rows(*later(steps=1024))}
    assert rows["steps"] == ("1024", "")
    assert rows["step rate"] == ("12.0", "1/s")
    assert rows["acceptance by position"] == ("91.3% 80.0% -", "of those verified")
    assert rows["draft p50 / p99"] == ("1234.5 / 2000.0", "us")
    assert rows["last step"] == ("0.2", "s ago")
    assert rows["self-test"] == ("ok 12.0 s ago", "")
    assert rows["session"] == ("0000beef", "")
    assert rows["bad entries"] == ("3", "")


def test_the_table_fits_a_terminal_of_24_lines() -> None:
    assert len(table_rows(*later())) <= 24 - len(("title", "remark", "cursor"))


def test_a_failed_self_test_is_loud_and_no_session_is_none() -> None:
    rows = {name: value for name, value, _ in table_rows(*later(self_test_ok=False, session=0))}
    assert rows["self-test"] == "FAILED 12.0 s ago"
    assert rows["session"] == "none"


def test_the_line_says_the_same_for_a_log() -> None:
    said = one_line(*later(steps=1024))
    assert "\n" not in said
    for part in ("steps 1024", "step rate 12.0/s", "91.3% 80.0% -", "draft 1234.5 / 2000.0 us"):
        assert part in said


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
ODD = st.dictionaries(st.sampled_from(sorted(SOUND)) | st.text(max_size=5), JSON)


@given(ODD, ODD)
def test_any_object_can_be_shown(first: dict[str, Any], second: dict[str, Any]) -> None:
    """A worker of another make, or another release."""
    before, now = Reading(first, 1.0), Reading(second, 2.0)
    for row in table_rows(before, now):
        assert all(len(cell) <= 200 for cell in row)
    assert one_line(before, now)
    assert all(isinstance(value_text(value), str) for value in second.values())
