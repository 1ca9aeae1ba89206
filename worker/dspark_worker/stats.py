"""What the worker counted and timed, as STATS answers it (§6.5, R35).

Decides keys and units; each counter moves by exactly one per event. Refuses to know how an event
came about, and reads neither clock nor machine: times are arguments.

docs/stats.md explains every key to an operator.
"""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from dsparkctl.contract.codes import NEED_DRAFT, NEW_GEN, RESYNC, EntryStatus, FrameStatus
from dsparkctl.contract.records import ReqEntry

_KEPT = 2048
"""Durations are kept of this many last rounds: the percentiles speak of these."""

SPLIT = ("wire", "apply", "draft", "worker", "recv_to_send")
"""The timed parts of a round, in µs: receive and send; checks, window rule and storing; drafting;
apply + draft; request fully received to reply handed to the transport."""


BOUNDS_S = (
    *(0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01),
    *(0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 1.0),
)
"""Upper bounds of the histograms' buckets, in s; what took longer is in one more."""


class Histogram(NamedTuple):
    """Durations of one part since start."""

    counts: list[int]
    """By bucket, one more than there are bounds; not cumulative."""
    sum_s: float


class Stats:
    """Counters since start. `num_spec` is N, the length of the per-position lists."""

    def __init__(self, num_spec: int) -> None:
        self._num_spec = num_spec
        self._events: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._verified = [0] * num_spec
        self._accepted = [0] * num_spec
        self._accepted_hist = [0] * (num_spec + 1)
        self._durations_us: dict[str, deque[float]] = {part: deque(maxlen=_KEPT) for part in SPLIT}
        self._buckets = {part: [0] * (len(BOUNDS_S) + 1) for part in SPLIT}
        self._sums_s = dict.fromkeys(SPLIT, 0.0)
        self._last_step_at: float | None = None
        self._self_test: tuple[bool, float] | None = None

    def count(self, event: str, n: int = 1) -> None:
        self._events[event] += n

    def refused(self, status: FrameStatus) -> None:
        self._refused[status.name] += 1

    def took(self, part: str, seconds: float) -> None:
        self._durations_us[part].append(seconds * 1e6)
        self._buckets[part][bisect_left(BOUNDS_S, seconds)] += 1
        self._sums_s[part] += seconds

    def self_tested(self, ok: bool, now: float) -> None:
        self._self_test = (ok, now)

    def stepped(self, entries: Sequence[ReqEntry], statuses: Sequence[int], now: float) -> None:
        """One STEP that was applied, with the status each entry was answered with."""
        self._last_step_at = now
        events = self._events
        events["steps"] += 1
        for entry, status in zip(entries, statuses, strict=True):
            if status <= EntryStatus.PARTIAL_WINDOW:
                events["rows"] += entry.n_rows
                if entry.req_flags & NEED_DRAFT:
                    events["drafted_requests"] += 1
                if status == EntryStatus.PARTIAL_WINDOW:
                    events["partial_windows"] += 1
                self._judge_acceptance(entry)
            elif status == EntryStatus.STALE_GENERATION:
                events["stale_generation"] += 1
            elif status == EntryStatus.BAD_ENTRY:
                events["bad_entries"] += 1
            else:
                events["internal_entries"] += 1
            if entry.req_flags & RESYNC:
                events["resyncs"] += 1

    def _judge_acceptance(self, entry: ReqEntry) -> None:
        """§6.5: of k_window drafts verified, n_rows − 1 were accepted (the last row is the bonus).

        A re-sent or new window says nothing about drafts, nor does a count that cannot be one.
        """
        k, accepted = min(entry.k_window, self._num_spec), entry.n_rows - 1
        if not k or not 0 <= accepted <= k or entry.req_flags & (NEW_GEN | RESYNC):
            return
        self._accepted_hist[accepted] += 1
        for j in range(k):
            self._verified[j] += 1
            self._accepted[j] += j < accepted

    def snapshot(self, now: float) -> dict[str, Any]:
        """All keys this class owns; ages and times are measured against `now` (s)."""
        events = self._events
        ok, tested_at = self._self_test or (None, None)
        return {
            "steps": events["steps"],
            "rows": events["rows"],
            "drafted_requests": events["drafted_requests"],
            "partial_windows": events["partial_windows"],
            "stale_generation": events["stale_generation"],
            "bad_entries": events["bad_entries"],
            "internal_entries": events["internal_entries"],
            "resyncs": events["resyncs"],
            "hellos": events["hellos"],
            "resets": events["resets"],
            "pings": events["pings"],
            "connections": events["connections"],
            "admin_connections": events["admin_connections"],
            "framing_lost": events["framing_lost"],
            "frames_refused": dict(self._refused),
            "accepted_hist": list(self._accepted_hist),
            "verified_per_position": list(self._verified),
            "accepted_per_position": list(self._accepted),
            "acceptance_per_position": [
                round(a / v, 4) if v else None
                for a, v in zip(self._accepted, self._verified, strict=True)
            ],
            **self._percentiles(),
            "last_step_age_s": _age(self._last_step_at, now),
            "self_test_ok": ok,
            "self_test_age_s": _age(tested_at, now),
        }

    def histograms(self) -> dict[str, Histogram]:
        """Every timed part's durations, for those who make rates of them."""
        return {part: Histogram([*self._buckets[part]], self._sums_s[part]) for part in SPLIT}

    def _percentiles(self) -> dict[str, float | None]:
        found: dict[str, float | None] = {}
        for part, durations in self._durations_us.items():
            ordered = sorted(durations)
            for percent in (50, 99):
                key = f"{part}_us_p{percent}"
                found[key] = round(percentile(ordered, percent), 1) if ordered else None
        return found


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of values in ascending order; there must be at least one."""
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


def _age(at: float | None, now: float) -> float | None:
    return None if at is None else round(max(0.0, now - at), 3)
