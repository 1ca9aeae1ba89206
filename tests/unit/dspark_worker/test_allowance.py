"""The admin side's share of the worker's time (issue 6, part 5: floods)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_worker.allowance import Allowance


def test_a_burst_goes_at_once_and_then_the_share_holds() -> None:
    allowance = Allowance(0.05, 0.01)
    now_s, n_done = 100.0, 0
    while n_done < 1000 and now_s < 101.0:
        now_s = max(now_s, allowance.may_from_s())
        now_s += 0.0001
        allowance.spend(0.0001, now_s)
        n_done += 1
    # 100 of the burst, then 0.1 ms of every 2 ms: 500 in the second.
    assert 560 < n_done < 640


def test_after_a_rest_the_burst_is_there_again_and_no_more_of_it() -> None:
    allowance = Allowance(0.05, 0.01)
    allowance.spend(5.0, 0.0)
    assert allowance.may_from_s() == pytest.approx(100.0 - 0.2)
    for now_s in (1000.0, 100_000.0):
        allowance.spend(0.01, now_s)
        assert allowance.may_from_s() == pytest.approx(now_s)


@given(
    st.floats(0.01, 0.5), st.floats(0.001, 0.1),
    st.lists(st.tuples(st.floats(0, 0.01), st.floats(0, 0.05)), max_size=200),
)  # fmt: skip
def test_whoever_asks_first_never_takes_more_than_share_and_burst(
    share: float, burst_s: float, pieces: list[tuple[float, float]]
) -> None:
    """Against the plain sum, over the whole time."""
    allowance, now_s, taken_s, longest_s = Allowance(share, burst_s), 0.0, 0.0, 0.0
    for work_s, pause_s in pieces:
        now_s = max(now_s + pause_s, allowance.may_from_s()) + work_s
        allowance.spend(work_s, now_s)
        taken_s += work_s
        longest_s = max(longest_s, work_s)
    assert taken_s <= share * now_s + burst_s + longest_s + 1e-9
