"""What each policy makes of a round (§10), the same on every rank."""

import pytest

from dsparkctl.client.environment import OnFail, Policy, ShadowUse
from dsparkctl.client.fallback import Outcome
from dsparkctl.client.policies import Course, course, raises, waits_for_status

SERVED = [Outcome.DRAFTED, Outcome.APPENDED]
FAILED = [outcome for outcome in Outcome if outcome not in SERVED]

REMOTE = Course(drafts_locally=False, keeps_context=False, uses_local=False)
REMOTE_IN_STEP = Course(drafts_locally=False, keeps_context=True, uses_local=False)
LOCAL = Course(drafts_locally=True, keeps_context=False, uses_local=True)
BOTH_USE_REMOTE = Course(drafts_locally=True, keeps_context=False, uses_local=False)


@pytest.mark.parametrize("use", ShadowUse)
@pytest.mark.parametrize("wants", [True, False])
@pytest.mark.parametrize("outcome", Outcome)
def test_capacity_has_no_local_drafter(outcome: Outcome, wants: bool, use: ShadowUse) -> None:
    assert course(Policy.CAPACITY, use, outcome, wants_drafts=wants) == REMOTE


@pytest.mark.parametrize("outcome", SERVED)
def test_resilience_keeps_its_drafter_in_step_while_the_worker_serves(outcome: Outcome) -> None:
    found = course(Policy.RESILIENCE, ShadowUse.LOCAL, outcome, wants_drafts=True)
    assert found == REMOTE_IN_STEP


@pytest.mark.parametrize("outcome", FAILED)
def test_resilience_drafts_locally_in_every_failed_round(outcome: Outcome) -> None:
    assert course(Policy.RESILIENCE, ShadowUse.LOCAL, outcome, wants_drafts=True) == LOCAL


@pytest.mark.parametrize("outcome", Outcome)
def test_shadow_drafts_locally_in_every_round_and_uses_that(outcome: Outcome) -> None:
    assert course(Policy.SHADOW, ShadowUse.LOCAL, outcome, wants_drafts=True) == LOCAL


@pytest.mark.parametrize("outcome", Outcome)
def test_shadow_use_remote_takes_the_workers_drafts_where_there_are_any(outcome: Outcome) -> None:
    found = course(Policy.SHADOW, ShadowUse.REMOTE, outcome, wants_drafts=True)
    assert found == (BOTH_USE_REMOTE if outcome in SERVED else LOCAL)


@pytest.mark.parametrize("policy", [Policy.RESILIENCE, Policy.SHADOW])
@pytest.mark.parametrize("outcome", Outcome)
def test_nobody_drafts_when_the_engine_verifies_nothing_next(
    policy: Policy, outcome: Outcome
) -> None:
    assert course(policy, ShadowUse.LOCAL, outcome, wants_drafts=False) == REMOTE_IN_STEP


def test_raise_ends_the_engine_unless_the_worker_served_or_a_person_switched_it_off() -> None:
    assert [o for o in Outcome if not raises(OnFail.RAISE, o)] == [*SERVED, Outcome.SWITCHED_OFF]


def test_fallback_ends_it_only_where_rank_0_says_so() -> None:
    assert [o for o in Outcome if raises(OnFail.FALLBACK, o)] == [Outcome.RAISED]


def test_only_who_acts_on_the_status_waits_for_it() -> None:
    assert not waits_for_status(Policy.CAPACITY, OnFail.FALLBACK)
    assert waits_for_status(Policy.CAPACITY, OnFail.RAISE)
    assert waits_for_status(Policy.RESILIENCE, OnFail.FALLBACK)
    assert waits_for_status(Policy.SHADOW, OnFail.FALLBACK)
