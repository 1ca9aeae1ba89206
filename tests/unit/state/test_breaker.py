"""The circuit breaker (§10, v1.8), sentence by sentence."""

import pytest

from dsparkctl.state.breaker import Breaker, State
from dsparkctl.state.verdict import Verdict

OK, BAD, NEUTRAL = Verdict.SUCCESS, Verdict.FAILURE, Verdict.NEUTRAL


def after(breaker: Breaker, *verdicts: Verdict) -> Breaker:
    """Rounds that all may send, and what each came to."""
    for verdict in verdicts:
        breaker, may_send = breaker.begun()
        assert may_send
        breaker = breaker.settled(verdict)
    return breaker


def silent(breaker: Breaker) -> tuple[Breaker, int]:
    """The breaker in the first round that may send again, and how many could not before it."""
    n = 0
    while True:
        breaker, may_send = breaker.begun()
        if may_send:
            return breaker, n
        n += 1


def tripped(trip: int = 3, cooldown: int = 256) -> Breaker:
    breaker = after(Breaker(trip, cooldown), *[BAD] * trip)
    assert breaker.state is State.OPEN
    return breaker


def test_three_failures_in_a_row_open_it_and_two_do_not() -> None:
    """§10: after TRIP failed attempts in a row."""
    assert after(Breaker(3, 256), BAD, BAD).state is State.CLOSED
    assert after(Breaker(3, 256), BAD, BAD, BAD).state is State.OPEN


def test_a_success_resets_the_count() -> None:
    """§10."""
    assert after(Breaker(3, 256), BAD, BAD, OK, BAD, BAD).state is State.CLOSED


def test_a_neutral_round_neither_resets_the_count_nor_adds_to_it() -> None:
    """§10, v1.8: rounds that send nothing, and appends that succeed."""
    assert after(Breaker(3, 256), BAD, NEUTRAL, BAD, NEUTRAL, NEUTRAL).state is State.CLOSED
    assert after(Breaker(3, 256), BAD, NEUTRAL, BAD, NEUTRAL, BAD).state is State.OPEN


def test_c10_after_a_failure_in_round_s_the_next_step_is_in_round_s_plus_257() -> None:
    """C10: s + 1 to s + 256 are silent; "one 50 ms deadline per 257 rounds"."""
    breaker, n_silent = silent(tripped())
    assert n_silent == 256
    breaker, n_silent = silent(breaker.settled(BAD))
    assert n_silent == 256
    assert breaker.state is State.PROBING


def test_a_probe_that_succeeds_closes_it() -> None:
    """§10: and the count begins anew."""
    breaker = silent(tripped())[0].settled(OK)
    assert breaker.state is State.CLOSED
    assert after(breaker, BAD, BAD).state is State.CLOSED


def test_a_probe_that_fails_opens_it_again_at_once() -> None:
    """§10: one failure, not three."""
    assert silent(tripped(cooldown=4))[0].settled(BAD).state is State.OPEN


def test_rounds_without_a_connection_let_the_probe_wait() -> None:
    """§10, v1.8: neutral; the next STEP that needs drafts is still the probe."""
    breaker = silent(tripped(cooldown=4))[0].settled(NEUTRAL)
    breaker = after(breaker, NEUTRAL, NEUTRAL)
    assert breaker.state is State.PROBING
    assert after(breaker, BAD).state is State.OPEN


def test_c11_an_append_that_fails_while_a_probe_is_due_opens_it_again() -> None:
    """C11: one that succeeds is neutral and closes nothing."""
    due = silent(tripped(cooldown=4))[0]
    assert due.settled(NEUTRAL).state is State.PROBING
    assert due.settled(BAD).state is State.OPEN


def test_the_cooldown_counts_rounds_whatever_else_keeps_them_from_sending() -> None:
    """§10: connected or not. `settled` is not even called for a silent round."""
    breaker = tripped(cooldown=2)
    for may_send in (False, False, True, True):
        breaker, allowed = breaker.begun()
        assert allowed is may_send


def test_trip_0_never_opens_it() -> None:
    """§10: every round tries again."""
    assert after(Breaker(0, 256), *[BAD] * 1000).state is State.CLOSED


@pytest.mark.parametrize(("trip", "cooldown"), [(1, 1), (1, 256), (5, 3), (2, 0)])
def test_other_settings_are_counted_alike(trip: int, cooldown: int) -> None:
    """§10: TRIP and COOLDOWN."""
    assert after(Breaker(trip, cooldown), *[BAD] * (trip - 1)).state is State.CLOSED
    assert silent(tripped(trip, cooldown))[1] == cooldown


def test_a_trip_after_a_probe_that_succeeded_needs_all_failures_again() -> None:
    breaker = silent(tripped(3, 4))[0].settled(OK)
    assert after(breaker, BAD, BAD, OK, BAD, BAD).state is State.CLOSED
    assert after(breaker, BAD, BAD, BAD).state is State.OPEN
