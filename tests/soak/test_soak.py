"""A short soak (issue 6, part 5), and that its judges bite. `make soak MINUTES=` takes longer."""

import subprocess
import sys

import pytest

from tests.soak.__main__ import MAX_GROWTH_BYTES, Life, Sample, soak


@pytest.mark.timeout(300)
def test_outputs_stay_right_under_half_a_minute_of_faults() -> None:
    found = soak(25.0, seed=7)
    assert found["wrong"] == []
    assert sum(found["faults"].values()) >= 3
    assert found["engine"]["connections"] > 1, "something must have happened to it"


@pytest.mark.parametrize(
    ("rss", "descriptors", "threads", "n_wrong"),
    [(0, 0, 0, 0), (MAX_GROWTH_BYTES * 4, 0, 0, 1), (0, 40, 0, 1), (0, 0, 40, 1), (0, 1, 1, 0)],
)
def test_growth_of_a_process_is_found(
    rss: int, descriptors: int, threads: int, n_wrong: int
) -> None:
    with subprocess.Popen([sys.executable, "-c", ""], text=True) as process:
        life = Life("worker", process)
    life.samples = [
        Sample(float(age_s), 100_000_000 + rss * age_s // 60, 10 + descriptors * age_s // 60,
               4 + threads * age_s // 60)
        for age_s in range(61)
    ]  # fmt: skip
    assert len(life.growth()) == n_wrong
