"""How much time a guest may take while the host works: a share of it, and a burst on top.

Decides when the next piece of work may begin (a leaky bucket, by the theoretical arrival time of
its next drop). Pure: time is an argument, in s from anywhere.
"""


class Allowance:
    """`share` of all time, and `burst_s` of it at once after a rest."""

    def __init__(self, share: float, burst_s: float) -> None:
        self._share = share
        self._tolerance_s = burst_s / share
        self._paid_until_s = 0.0

    def spend(self, seconds: float, now_s: float) -> None:
        """So much was taken, up to `now_s`."""
        self._paid_until_s = max(self._paid_until_s, now_s) + seconds / self._share

    def may_from_s(self) -> float:
        """The time from which on more may be taken."""
        return self._paid_until_s - self._tolerance_s
