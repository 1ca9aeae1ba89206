"""What rank 0 tells between rounds, once an interval."""

import logging
from pathlib import Path

import pytest

from dsparkctl.client.interval import Interval
from dsparkctl.client.shadow import ShadowReport
from tests.unit.client.fakes import Ask, Bench, N


def interval(bench: Bench, every_s: float, file: Path | None = None) -> Interval:
    return Interval(
        bench.rounds, ShadowReport(N), every_s=every_s, metrics_file=file, clock=bench.clock
    )


def test_a_line_comes_once_an_interval(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    told = interval(bench, 10)
    with caplog.at_level(logging.INFO, "dsparkctl.client.interval"):
        for _ in range(25):
            told.look()
            bench.clock.wait(1)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(":")[0] for line in lines] == ["remote drafting", "shadow"] * 2


def test_zero_tells_nothing_ever(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    told = interval(bench, 0)
    with caplog.at_level(logging.INFO):
        bench.clock.wait(1e6)
        told.look()
    assert not caplog.records


def test_the_snapshot_says_how_things_stand() -> None:
    bench = Bench()
    told = interval(bench, 0)
    assert not told.snapshot()["connected"]
    bench.run(Ask("r", 0, 0, 1))
    found = told.snapshot()
    assert found["connected"]
    assert not found["breaker_open"]
    assert (found["step_id"], found["connections"], found["drafted"]) == (1, 1, 1)


def test_a_file_that_cannot_be_written_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No figure is worth a round."""
    bench = Bench()
    folder = tmp_path / "metrics"
    told = interval(bench, 1, folder / "dspark.prom")
    for _ in range(3):
        bench.clock.wait(1)
        told.look()
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    folder.mkdir()
    bench.clock.wait(1)
    told.look()
    assert "dspark_client_rounds_total 0" in (folder / "dspark.prom").read_text()
