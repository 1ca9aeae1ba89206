"""The wall-clock backoff (§10, C1): 1 s, doubling up to 30 s, reset by a HELLO."""

from dsparkctl.state.backoff import RESTED


def test_the_first_attempt_of_all_waits_for_nothing() -> None:
    assert RESTED.allows(-1e9)
    assert RESTED.allows(0.0)


def test_c1_the_first_reconnect_waits_a_second_and_the_next_ones_twice_as_long_each() -> None:
    """§10: 1, 2, 4, 8, 16, 30, 30 s, counted from the attempt that failed."""
    backoff, now_s, waits = RESTED, 50.0, []
    for _ in range(8):
        backoff = backoff.failed(now_s)
        waits.append(backoff.next_at_s - now_s)
        assert not backoff.allows(backoff.next_at_s - 1e-6)
        assert backoff.allows(backoff.next_at_s)
        now_s = backoff.next_at_s + 7.0
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_an_accepted_hello_makes_the_next_wait_the_shortest_again() -> None:
    """§10: reset by a successful HELLO."""
    backoff = RESTED.failed(0.0).failed(1.0).failed(3.0).succeeded()
    assert backoff.failed(100.0).next_at_s == 101.0
