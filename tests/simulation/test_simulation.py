"""Both sides under every fault on simulated time: no invariant breaks, and a seed replays exactly.

The fixed seeds are the same in every run; fresh ones follow for a bounded time, and are printed, so
that one that breaks can be run again.
"""

import json
import random
import re
import time
from collections import Counter

import pytest

from dsparkctl.cli.app import run as run_command
from dsparkctl.client.fallback import Outcome
from dsparkctl.simulation import run
from dsparkctl.simulation.faults import Kind
from dsparkctl.simulation.report import described, results, summed
from dsparkctl.simulation.run import Failure, Result, run_seed
from dsparkctl.simulation.spoil import FAILURES, REFUSED
from tests.simulation.seeds import FIXED

UNSEEN = (Outcome.NEWER_CONNECTION, Outcome.OWN_FAULT, Outcome.RAISED)
"""Rounds that run one after the other cannot meet these."""

_FRESH_S = 45.0
"""How long fresh seeds are tried."""


@pytest.fixture(scope="module")
def fixed() -> list[Result]:
    return list(results(FIXED))


def test_no_invariant_breaks_in_the_fixed_seeds(fixed: list[Result]) -> None:
    """§4 to §10: 2,000 engine rounds each."""
    assert [result.failure for result in fixed] == [None] * len(FIXED)
    assert {result.n_rounds for result in fixed} == {2000}


def test_every_kind_of_fault_occurs_in_the_fixed_seeds(fixed: list[Result]) -> None:
    report = summed(fixed)
    assert {kind for kind in Kind if not report.faults[kind]} == set()


def test_every_refused_value_every_way_to_fail_and_every_outcome_occur(fixed: list[Result]) -> None:
    """§6.3 v1.4, §9, C20, C21."""
    details = Counter[str]()
    for result in fixed:
        details += result.details
    refused = {f"refused: {name}" for name in REFUSED}
    failing = {f"failing: {how}" for how in FAILURES}
    counted = {f"counted: {outcome.counter}" for outcome in Outcome if outcome not in UNSEEN}
    statuses = {"counted: partial_windows", "counted: stale_generation", "counted: bad_entries"}
    late = {"late: processed after all"}
    assert (refused | failing | counted | statuses | late) - details.keys() == set()


def test_drafts_are_accepted_wherever_the_worker_is_heard(fixed: list[Result]) -> None:
    """Else the rows of accepted drafts would never be tested."""
    assert sum(result.n_accepted for result in fixed) > 0.3 * sum(r.n_tokens for r in fixed)


def test_fresh_seeds_break_nothing_either(capsys: pytest.CaptureFixture[str]) -> None:
    """They are printed: a seed that breaks is one for `FIXED`, once it is mended."""
    first = random.SystemRandom().randrange(1_000, 10**9)
    end_s = time.monotonic() + _FRESH_S
    seed = first
    while time.monotonic() < end_s:
        failure = run_seed(seed).failure
        assert failure is None, described(failure, run.ROUNDS)
        seed += 1
    with capsys.disabled():
        print(f"\nfresh seeds {first}:{seed} are sound")  # noqa: T201 -- that is how they are known


def test_the_same_seed_is_the_same_run_and_another_seed_is_another() -> None:
    one, again, other = run_seed(24, 400), run_seed(24, 400), run_seed(51, 400)
    assert one == again
    assert one.digest != other.digest


def test_logging_is_as_loud_behind_a_seed_as_before_it() -> None:
    import logging

    before = logging.root.manager.disable
    run_seed(1, 20)
    assert logging.root.manager.disable == before


# --- the command ----------------------------------------------------------------------------------


def test_the_last_line_counts_rounds_and_faults(capsys: pytest.CaptureFixture[str]) -> None:
    """A:B excludes B."""
    assert run_command(["simulate", "--seeds", "3:5", "--rounds", "100", "--json"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["seeds"], last["rounds"], last["broken"]) == (2, 200, 0)
    assert last["rounds_per_s"] > 0
    assert last["faults"].keys() == {kind.value for kind in Kind}


def test_a_person_reads_the_same_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["simulate", "--seeds", "3:4", "--rounds", "50"]) == 0
    assert re.match(r"seeds 1, rounds 50, broken 0, rounds/s \d+; late ", capsys.readouterr().out)


def test_a_broken_seed_is_told_with_the_command_that_shows_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(seed: int, n_rounds: int) -> Result:
        failure = Failure(seed, 7, "seq rises", "5") if seed == 3 else None
        return Result(seed, 7, failure, Counter(), Counter(), "", 0, 0)

    monkeypatch.setattr("dsparkctl.simulation.report.run_seed", broken)
    assert run_command(["simulate", "--seeds", "3:5", "--rounds", "9", "--json"]) == 1
    said = capsys.readouterr()
    assert json.loads(said.out.splitlines()[-1])["broken"] == 1
    assert said.err.splitlines() == [
        "seed 3, round 7: seq rises: 5; again: dsparkctl simulate --seeds 3:4 --rounds 9",
        "1 of 2 seeds are broken",
    ]


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--seeds", "5"],
        ["--seeds", "5:5"],
        ["--seeds", "5:4"],
        ["--seeds", "a:b"],
        ["--seeds", "-1:4"],
        ["--seeds", "0:9999999999999999"],
        ["--seeds", "0:1", "--rounds", "0"],
        ["--seeds", "0:1", "--rounds", "many"],
        ["--seeds", "0:1", "extra"],
    ],
)
def test_bad_arguments_are_one_line_and_exit_2(
    args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["simulate", *args]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
