"""The breaker against a recount over the whole history of rounds, written from the text of §10."""

from hypothesis import given, settings
from hypothesis import strategies as st

from dsparkctl.state.breaker import Breaker
from dsparkctl.state.verdict import Verdict

SILENT = None
"""A round that the breaker kept from sending."""


def may_send(history: list[Verdict | None], trip: int, cooldown: int) -> bool:
    """Whether the next round may send, counted from the first round on."""
    n_in_a_row, opened_in = 0, None
    for number, verdict in enumerate(history):
        if verdict is Verdict.SUCCESS:  # "a success resets the count", "success closes the breaker"
            n_in_a_row, opened_in = 0, None
        elif verdict is Verdict.FAILURE:
            n_in_a_row += 1
            was_open = opened_in is not None  # so this was a probe: "failure opens it again"
            if trip and (was_open or n_in_a_row >= trip):
                opened_in = number
    # "The next COOLDOWN engine rounds send nothing."
    return opened_in is None or len(history) - opened_in > cooldown


@settings(max_examples=400)
@given(
    trip=st.integers(0, 4),
    cooldown=st.integers(0, 6),
    rounds=st.lists(
        st.sampled_from([Verdict.FAILURE, Verdict.FAILURE, Verdict.NEUTRAL, Verdict.SUCCESS]),
        max_size=80,
    ),
)
def test_every_round_sends_exactly_when_a_recount_says_so(
    trip: int, cooldown: int, rounds: list[Verdict]
) -> None:
    """§10, v1.8; C10 to C12."""
    breaker = Breaker(trip, cooldown)
    history: list[Verdict | None] = []
    for verdict in rounds:
        breaker, allowed = breaker.begun()
        assert allowed == may_send(history, trip, cooldown), history
        if allowed:
            breaker = breaker.settled(verdict)
        history.append(verdict if allowed else SILENT)
