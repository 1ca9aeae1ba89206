"""`Deadline`: one end for everything (C26)."""

from dsparkctl.net.ask import NotOurs
from dsparkctl.net.transport import Broken, Deadline, NotInThisBuild, TimedOut, TransportError


def test_a_deadline_is_absolute_and_never_negative() -> None:
    """C26."""
    now_s = 100.0
    deadline = Deadline(2.0, lambda: now_s)
    assert deadline.left_s == 2.0
    now_s = 101.5
    assert deadline.left_s == 0.5
    now_s = 103.0
    assert deadline.left_s == 0.0
    assert deadline.timeout_s == 2.0


def test_by_itself_a_deadline_runs_on_the_monotonic_clock() -> None:
    assert 59 < Deadline(60).left_s <= 60


def test_whoever_talks_to_a_worker_can_catch_one_class() -> None:
    for kind in (TimedOut, Broken, NotInThisBuild, NotOurs):
        assert issubclass(kind, TransportError)
