"""Greedy verification."""

from hypothesis import given
from hypothesis import strategies as st

from dsparkctl.engine.verify import verify


def test_without_drafts_the_targets_choice_is_the_one_token() -> None:
    assert verify([], [7]) == ([7], 0)


def test_the_first_draft_that_differs_ends_the_accepted_ones() -> None:
    """Drafts behind a wrong one do not count, even where they look right: they follow it."""
    assert verify([1, 2, 9, 4], [1, 2, 3, 4, 5]) == ([1, 2, 3], 2)


def test_all_drafts_right_bring_one_token_more() -> None:
    assert verify([1, 2, 3], [1, 2, 3, 4]) == ([1, 2, 3, 4], 0)


@given(st.lists(st.integers(0, 2), max_size=6), st.data())
def test_whatever_is_drafted_the_tokens_are_the_targets_own(
    drafts: list[int], data: st.DataObject
) -> None:
    n = len(drafts) + 1
    choices = data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    sampled, n_rejected = verify(drafts, choices)
    assert sampled == choices[: len(sampled)]
    assert len(sampled) + n_rejected == n
