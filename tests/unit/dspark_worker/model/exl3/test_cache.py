"""A budget of decoded matrices: what is pinned, what is kept, what goes (issue 4, §1)."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from dspark_worker.model.exl3.cache import DecodedCache
from tests.unit.dspark_worker.model.exl3.layers import CPU


def cache(n_weights: int) -> DecodedCache:
    return DecodedCache(4 * n_weights, torch.float32, CPU)


def test_what_is_pinned_stays_and_takes_its_part_of_the_budget() -> None:
    one = cache(100)
    assert one.pin(60) is not None
    assert one.pin(41) is None
    assert one.pin(40) is not None
    assert one.facts()[:3] == (400, 400, 0)


def test_the_least_recently_used_goes_first_and_leaves_its_memory() -> None:
    one = cache(30)
    buffers = {key: one.room(key, 10) for key in "abc"}
    assert one.find("a") is buffers["a"]
    assert one.room("d", 10) is buffers["b"]
    assert one.find("b") is None
    assert one.find("c") is buffers["c"]
    assert one.facts()[2:] == (120, 2, 1)


def test_what_does_not_fit_beside_the_pinned_shares_one_buffer() -> None:
    one = cache(30)
    one.pin(25)
    first = one.room("a", 10)
    assert one.find("a") is None
    assert one.room("b", 10).data_ptr() == first.data_ptr()
    assert one.facts().kept_bytes == 0


def test_half_as_many_bytes_hold_twice_as_much() -> None:
    one = DecodedCache(40, torch.float16, CPU)
    assert one.pin(20) is not None
    assert one.pin(1) is None


@given(st.integers(0, 60), st.lists(st.tuples(st.integers(0, 5), st.integers(1, 25))))
def test_the_budget_is_never_passed(n_budget: int, uses: list[tuple[int, int]]) -> None:
    one = cache(n_budget)
    for key, n_weights in uses:
        if one.find((key, n_weights)) is None:
            buffer = one.room((key, n_weights), n_weights)
            assert buffer.numel() == n_weights
        facts = one.facts()
        assert 0 <= facts.pinned_bytes + facts.kept_bytes <= facts.budget_bytes
    kept = {(key, n) for key, n in uses if one.find((key, n)) is not None}
    assert 4 * sum(n for _, n in kept) == one.facts().kept_bytes
