"""What the shadow policy found out (§10): how remote drafts compare with the local drafter's.

Decides how an entry's drafts are counted. Refuses to know how either side came to them, and holds
no tensor: ids and margins are plain sequences, an entry's N values in order.

A draft is chosen after the draft before it, so past the first mismatch the two sides answer
different questions. The histogram and the margins speak of that first one; the agreement per
position speaks of all, since that is what the verifier would have been given.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

_FINEST: Final = -20
_COARSEST: Final = 10
"""Margins are kept in buckets of powers of two; those outside go into the outermost."""


class ShadowReport:
    """Counts since start; `num_spec` is N."""

    def __init__(self, num_spec: int) -> None:
        self._num_spec = num_spec
        self._n_compared = 0
        self._n_not_compared = 0
        self._compared = [0] * num_spec
        self._agreed = [0] * num_spec
        self._first_mismatch = [0] * (num_spec + 1)
        self._buckets: Counter[int] = Counter()
        self._least = math.inf
        self._most = 0.0

    def compare(
        self,
        remote_ids: Sequence[int],
        local_ids: Sequence[int],
        margins: Sequence[float] | None,
        n: int,
    ) -> None:
        """One entry: its first `n` positions (0..N) that both sides drafted.

        `margins` are the worker's top1 − top2 (§6.3), finite and >= 0, or None where it sent none.
        With `n` 0 the entry counts as not compared.
        """
        if not 0 <= n <= min(self._num_spec, len(remote_ids), len(local_ids)):
            raise ValueError(f"{n} positions to compare of {self._num_spec}")
        if not n:
            self.skip()
            return
        same = [remote_ids[j] == local_ids[j] for j in range(n)]
        for j, agrees in enumerate(same):
            self._compared[j] += 1
            self._agreed[j] += agrees
        self._n_compared += 1
        if all(same):
            self._first_mismatch[-1] += 1
            return
        first = same.index(False)
        self._first_mismatch[first] += 1
        if margins is not None:
            self._note_margin(margins[first])

    def skip(self, n_entries: int = 1) -> None:
        """Entries that wanted drafts and cannot be compared: the round failed, or sent nothing."""
        self._n_not_compared += n_entries

    def snapshot(self) -> dict[str, Any]:
        """Plain values. `first_mismatch[j]` entries agreed on exactly j drafts, the last on all
        that were compared; `agreed[j]` of `compared[j]` entries agreed at position j. `margin` is
        that at the first mismatch: how sure the worker was where the local drafter differed; its
        median is the upper edge of a bucket of powers of two, None where there is none."""
        n = sum(self._buckets.values())
        return {
            "entries_compared": self._n_compared,
            "entries_not_compared": self._n_not_compared,
            "compared": [*self._compared],
            "agreed": [*self._agreed],
            "first_mismatch": [*self._first_mismatch],
            "margin": {
                "n": n,
                "min": self._least if n else None,
                "median": self._median(n) if n else None,
                "max": self._most if n else None,
                "log2": dict(sorted(self._buckets.items())),
            },
        }

    def log_line(self) -> str:
        found = self.snapshot()
        shares = " ".join(
            f"{agreed / compared:.1%}" if compared else "-"
            for agreed, compared in zip(found["agreed"], found["compared"], strict=True)
        )
        line = (
            f"shadow: {found['entries_compared']} entries compared, "
            f"{found['entries_not_compared']} not; agreement by position {shares}; "
            f"first mismatch at {found['first_mismatch'][:-1]}, "
            f"none {found['first_mismatch'][-1]}"
        )
        margin = found["margin"]
        if margin["n"]:
            line += (
                f"; margin there {margin['min']:.3g} to {margin['max']:.3g}, "
                f"median at most {margin['median']:.3g}"
            )
        return line

    def _note_margin(self, margin: float) -> None:
        """Into the bucket whose upper edge is the least power of two that is >= the margin."""
        exponent = math.ceil(math.log2(margin)) if margin > 0 else _FINEST
        self._buckets[max(_FINEST, min(_COARSEST, exponent))] += 1
        self._least = min(self._least, margin)
        self._most = max(self._most, margin)

    def _median(self, n: int) -> float:
        """The upper edge of the bucket that holds the middle margin, never above the largest."""
        n_below = 0
        for exponent in sorted(self._buckets):
            n_below += self._buckets[exponent]
            if 2 * n_below >= n:
                return self._most if exponent == _COARSEST else min(2.0**exponent, self._most)
        raise AssertionError("no margins")
