"""What a run comes to."""

import pytest

from dsparkctl.client.fallback import Outcome
from dsparkctl.engine.engine import Round
from dsparkctl.engine.report import Tally, spread, tally_facts
from dsparkctl.engine.verify import Verified

_OUTCOMES = (
    Outcome.TIMEOUT,
    Outcome.COOLDOWN,
    Outcome.COOLDOWN,
    Outcome.APPENDED,
    Outcome.DISABLED,
)


def done(*verified: Verified, outcome: Outcome = Outcome.DRAFTED, n_drafted: int = 0) -> Round:
    return Round((), verified, outcome, n_drafted, 0.005, 0.002)


def test_the_acceptance_of_a_position_is_of_all_entries_that_got_drafts() -> None:
    """So that its sum is the mean, and no position looks better because few got there."""
    tally = Tally(3)
    tally.add(done(Verified([1], 0), Verified([], 0), n_drafted=1))
    tally.add(done(Verified([1, 2, 3], 1), n_drafted=1))
    tally.add(done(Verified([1, 2], 2), n_drafted=2))
    found = tally_facts(tally)
    assert found["drafted_requests"] == 4
    assert found["accepted"] == 3
    assert found["acceptance_per_position"] == [0.5, 0.25, 0.0]
    assert found["tokens_per_step"] == 2.0
    assert found["fallbacks"] == {}


def test_a_partial_chunk_is_no_step_of_the_target() -> None:
    tally = Tally(3)
    tally.add(done(Verified([], 0)))
    assert (tally.n_steps, tally.tokens_per_step) == (0, 0.0)


def test_rounds_without_drafts_stand_under_the_clients_own_names() -> None:
    tally = Tally(3)
    for outcome in _OUTCOMES:
        tally.add(done(outcome=outcome))
    assert tally.fallbacks == {
        "fallback_disabled": 1,
        "fallback_cooldown": 2,
        "fallback_timeout": 1,
    }


def test_an_engines_own_time_is_a_round_without_its_proposal() -> None:
    tally = Tally(3)
    tally.add(done())
    assert tally.engine_ms == pytest.approx([3.0])


def test_a_spread_of_nothing_is_empty() -> None:
    assert spread([]) == {}
    assert spread([3.0, 1.0, 2.0]) == {"p50": 2.0, "p99": 3.0, "max": 3.0}
