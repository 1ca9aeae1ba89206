"""What each policy makes of a round (§10): whose drafts are used, and what the local drafter does.

Decides from the broadcast status and the settings alone, so that every rank comes to the same; no
clock, no rank. Refuses to know how drafts are made.
"""

from typing import NamedTuple

from dsparkctl.client.environment import OnFail, Policy, ShadowUse
from dsparkctl.client.fallback import Outcome


class Course(NamedTuple):
    """What every rank does once the status is known."""

    drafts_locally: bool
    """The local drafter proposes (and keeps its context)."""
    keeps_context: bool
    """The local drafter takes this round's rows into its context, and no more."""
    uses_local: bool
    """The engine gets the local drafts; otherwise the worker's, zeros where it sent none."""


def course(
    policy: Policy, shadow_use: ShadowUse, outcome: Outcome, *, wants_drafts: bool
) -> Course:
    """What follows from a round's status.

    `wants_drafts` is the engine's: False when it verifies none next, so that nobody drafts.
    Under SHADOW_USE=remote the local drafts stand in where the worker's failed: they are there.
    """
    if policy is Policy.CAPACITY:
        return Course(False, False, False)
    if not wants_drafts:
        return Course(False, True, False)
    has_failed = not is_served(outcome)
    if policy is Policy.RESILIENCE:
        return Course(has_failed, not has_failed, has_failed)
    return Course(True, False, has_failed or shadow_use is ShadowUse.LOCAL)


def is_served(outcome: Outcome) -> bool:
    """Whether the worker did what this round asked of it."""
    return outcome in (Outcome.DRAFTED, Outcome.APPENDED)


def raises(on_fail: OnFail, outcome: Outcome) -> bool:
    """Whether the engine ends here. A person who switched drafting off has failed nothing."""
    if outcome is Outcome.RAISED:
        return True
    return (
        on_fail is OnFail.RAISE and outcome is not Outcome.SWITCHED_OFF and not is_served(outcome)
    )


def waits_for_status(policy: Policy, on_fail: OnFail) -> bool:
    """Whether a rank other than 0 must read the status at once, which waits for the device."""
    return policy is not Policy.CAPACITY or on_fail is OnFail.RAISE
