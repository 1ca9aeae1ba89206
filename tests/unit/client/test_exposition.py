"""The counters as Prometheus reads them, and as the log has them."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from dsparkctl.client.counters import Counters
from dsparkctl.client.exposition import HELP, exposition, log_line, write_metrics
from dsparkctl.client.fallback import Outcome
from dsparkctl.config.errors import WriteError

SNAPSHOT: dict[str, Any] = {
    "rounds": 1000,
    "steps_sent": 990,
    "drafted_requests": 1200,
    "fallback_timeout": 3,
    "fallback_cooldown": 256,
    "fallback_transport": 0,
    "verified": [100, 90, 0],
    "accepted": [91, 45, 0],
    "round_us_p50": 1234.5,
    "round_us_p99": 4567.0,
    "connected": True,
    "share": 0.5,
    "last_bad_reply": 'entry 0: draft id "x"',
    "nested": {"a": 1},
    "nothing": None,
}


def parsed(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def values(family: Metric, label: str = "") -> dict[str, float]:
    return {sample.labels.get(label, ""): sample.value for sample in family.samples}


def test_whole_numbers_are_counters() -> None:
    found = parsed(exposition(SNAPSHOT))
    assert found["dspark_client_rounds"].type == "counter"
    assert values(found["dspark_client_rounds"]) == {"": 1000}
    assert found["dspark_client_rounds"].samples[0].name == "dspark_client_rounds_total"
    assert found["dspark_client_rounds"].documentation == HELP["rounds"]


def test_fallbacks_are_one_counter_by_reason() -> None:
    """§10"""
    found = parsed(exposition(SNAPSHOT))["dspark_client_fallbacks"]
    assert found.type == "counter"
    assert values(found, "reason") == {"timeout": 3, "cooldown": 256, "transport": 0}


def test_lists_are_one_counter_by_draft_position() -> None:
    found = parsed(exposition(SNAPSHOT))
    assert values(found["dspark_client_verified"], "position") == {"0": 100, "1": 90, "2": 0}
    assert values(found["dspark_client_accepted"], "position") == {"0": 91, "1": 45, "2": 0}


def test_percentiles_bools_and_fractions_are_gauges() -> None:
    found = parsed(exposition(SNAPSHOT))
    assert found["dspark_client_round_us"].type == "gauge"
    assert values(found["dspark_client_round_us"], "quantile") == {"0.5": 1234.5, "0.99": 4567}
    assert found["dspark_client_connected"].type == "gauge"
    assert values(found["dspark_client_connected"]) == {"": 1}
    assert values(found["dspark_client_share"]) == {"": 0.5}


def test_texts_nothing_and_nested_values_are_left_out() -> None:
    text = exposition(SNAPSHOT)
    assert not any(word in text for word in ("last_bad_reply", "nested", "nothing", "draft id"))


def test_each_family_is_described_once_and_stands_together() -> None:
    text = exposition({"fallback_a": 1, "rounds": 2, "fallback_b": 3})
    lines = text.splitlines()
    assert [line for line in lines if line.startswith("# TYPE")] == [
        "# TYPE dspark_client_fallbacks_total counter",
        "# TYPE dspark_client_rounds_total counter",
    ]
    assert lines[2:4] == [
        'dspark_client_fallbacks_total{reason="a"} 1',
        'dspark_client_fallbacks_total{reason="b"} 3',
    ]
    assert text.endswith("\n")


@given(st.text(max_size=20))
def test_labels_given_stand_on_every_sample_whatever_they_hold(text: str) -> None:
    text = "".join(text.splitlines()) + '\\"\n\\n'
    found = parsed(exposition(SNAPSHOT, {"worker": text}))
    assert len(found) == 9
    assert {sample.labels["worker"] for f in found.values() for sample in f.samples} == {text}


@pytest.mark.parametrize("key", ["", "Rounds", "a-b", "1a", "a b", "a\n", "é"])
def test_a_key_that_can_be_no_name_is_our_own_mistake(key: str) -> None:
    with pytest.raises(ValueError, match="cannot name a metric"):
        exposition({key: 1})


def test_every_counter_of_the_client_is_exposed_and_described() -> None:
    """§6.3, §10: nothing that `Counters` has is lost, and nobody has to guess what it means."""
    counters = Counters(5)
    for outcome in Outcome:
        counters.ended(outcome)
    counters.sent([], 12.0)
    snapshot = counters.snapshot()
    text = exposition(snapshot)
    found = parsed(text)
    reasons = values(found["dspark_client_fallbacks"], "reason")
    assert set(reasons) == {outcome.name.lower() for outcome in Outcome if outcome > 1}
    assert set(reasons.values()) == {1}
    for family in found.values():
        assert family.documentation == HELP[family.name.removeprefix("dspark_client_")]
    assert {name.removeprefix("dspark_client_") for name in found} == set(HELP)
    assert log_line(snapshot)


def test_the_log_line_leaves_out_what_never_happened() -> None:
    assert log_line(SNAPSHOT) == (
        "remote drafting: 1000 rounds; 990 sent; 1200 requests drafted; accepted by position "
        "91% 50% -; fallbacks: timeout 3, cooldown 256; round p50 1234 us, p99 4567 us; "
        'last bad reply: entry 0: draft id "x"'
    )


def test_a_client_that_did_nothing_yet_has_a_log_line() -> None:
    assert log_line({}) == (
        "remote drafting: 0 rounds; 0 sent; 0 requests drafted; accepted by position -; "
        "fallbacks: none"
    )


def test_the_metrics_file_is_replaced_whole_and_readable(tmp_path: Path) -> None:
    path = tmp_path / "dspark.prom"
    mask = os.umask(0o022)
    try:
        write_metrics(path, "first, and longer\n")
        write_metrics(path, "second\n")
    finally:
        os.umask(mask)
    assert path.read_text() == "second\n"
    assert path.stat().st_mode & 0o777 == 0o644
    assert [entry.name for entry in tmp_path.iterdir()] == ["dspark.prom"]


def test_a_reader_that_holds_the_old_file_never_sees_half_of_the_new(tmp_path: Path) -> None:
    path = tmp_path / "dspark.prom"
    write_metrics(path, "first\n")
    with path.open() as held:
        write_metrics(path, "second\n")
        assert held.read() == "first\n"


def test_a_metrics_file_that_cannot_be_written_is_one_line_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    missing = tmp_path / "no" / "dspark.prom"
    with pytest.raises(WriteError, match=r"dspark\.prom: cannot be written: No such file"):
        write_metrics(missing, "x")
    with pytest.raises(WriteError, match=r"cannot be written: Not a directory"):
        write_metrics(Path(__file__) / "dspark.prom", "x")
    folder = tmp_path / "folder.prom"
    folder.mkdir()
    with pytest.raises(WriteError, match=r"folder\.prom: cannot be written"):
        write_metrics(folder, "x")
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder.prom"]
