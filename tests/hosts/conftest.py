"""Boots the hosts once for all tests of this folder; where that cannot be, says so, loudly."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsparkctl.rollout.facts import WorkerFacts
from dsparkctl.rollout.wheelhouse import WheelhouseError
from dsparkctl.rollout.wheels_from_index import make_wheelhouse
from tests.hosts.fleet import CHECKPOINT, Bed, bed_verb, why_not


def _booted() -> Path:
    """Boot the hosts; the folder of wheels for them. Raises what stood in the way."""
    bed_verb("down")
    bed_verb("base")
    facts = WorkerFacts("x86host", python=(3, 11, 2), libc="glibc-2.36")  # Debian 12
    wheels = make_wheelhouse(Path("/var/tmp/dspark-wheelhouse"), facts)
    bed_verb("up")
    return wheels


@pytest.fixture(scope="session")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """Hosts with a checkpoint and without internet, and an operator with wheels.

    A machine that cannot boot them skips every test here by name; SSH itself is tested on a plain
    sshd all the same (`tests/e2e/ssh`).
    """
    if reason := why_not():
        pytest.skip(f"REAL HOSTS NOT TESTED: {reason}")
    try:
        wheels = _booted()
    except (AssertionError, WheelhouseError, subprocess.TimeoutExpired) as error:
        bed_verb("down")
        pytest.skip(f"REAL HOSTS NOT TESTED: {str(error).strip().splitlines()[-1][:300]}")
    try:
        bed = Bed(tmp_path_factory.mktemp("operator"), wheels)
        receipt = str(CHECKPOINT / "DSPARK_COPY_DONE")
        bed.ok("deploy", "checkpoint", str(CHECKPOINT), "--receipt", receipt)
        yield bed
    finally:
        bed_verb("down")


@pytest.fixture
def deployed(bed: Bed) -> Bed:
    """With a worker that serves what `dspark.yaml` says."""
    bed.ok("deploy", "x86host", "--lock-wait", "20")
    return bed
