"""The status word and the counters it moves (§4.1, §10)."""

from dsparkctl.client.fallback import Outcome


def test_the_status_word_is_small_and_zero_only_when_there_are_drafts() -> None:
    """§4.1: a tensor of zeros must never read as a failure, nor one reason as another."""
    assert Outcome(0) is Outcome.DRAFTED
    assert sorted(Outcome) == [*range(len(Outcome))]


def test_the_counters_that_the_contract_names_have_its_names() -> None:
    """§6.3, §10."""
    assert Outcome.BAD_REPLY.counter == "fallback_bad_reply"
    assert Outcome.COOLDOWN.counter == "fallback_cooldown"
    assert Outcome.SWITCHED_OFF.counter == "fallback_switched_off"


def test_only_rounds_without_drafts_where_drafts_were_due_are_fallbacks() -> None:
    good = {Outcome.DRAFTED, Outcome.APPENDED}
    for outcome in Outcome:
        assert outcome.counter.startswith("fallback_") is (outcome not in good)
    assert len({outcome.counter for outcome in Outcome}) == len(Outcome)
