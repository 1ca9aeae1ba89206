"""What rank 0 counts (§6.3, §10): one snapshot, for a log line, for Prometheus, for a person.

Decides names. A key that exists moves by exactly one per event; nothing here is ever reset.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

from dsparkctl.client.fallback import Outcome
from dsparkctl.contract.codes import NEED_DRAFT, RESYNC, EntryStatus
from dsparkctl.contract.records import ReqEntry, ReqStatus
from dsparkctl.state.ledger import Sampled, Scheduled

_KEPT_ROUNDS: Final = 1024
"""Rounds that the time percentiles look back on."""

_ENTRY_COUNTERS: Final = {
    EntryStatus.PARTIAL_WINDOW: "partial_windows",
    EntryStatus.STALE_GENERATION: "stale_generation",
    EntryStatus.BAD_ENTRY: "bad_entries",
    EntryStatus.INTERNAL: "internal_entries",
}


class Counters:
    """Counts of one rank 0 since its start. `num_spec` is N."""

    def __init__(self, num_spec: int) -> None:
        names = (
            "rounds",
            "steps_sent",
            "rows_sent",
            "resyncs",
            "drafted_requests",
            *_ENTRY_COUNTERS.values(),
            *(outcome.counter for outcome in Outcome),
        )
        self._counts = dict.fromkeys(names, 0)
        self._verified = [0] * num_spec
        self._accepted = [0] * num_spec
        self._round_us: deque[float] = deque(maxlen=_KEPT_ROUNDS)
        self.last_bad_reply = ""

    def began(self) -> None:
        """A round, whatever becomes of it."""
        self._counts["rounds"] += 1

    def verified(self, requests: Iterable[Scheduled], sampled: Iterable[Sampled]) -> None:
        """A round's requests tell how the last drafts fared against the target."""
        for request, result in zip(requests, sampled, strict=True):
            n_accepted = request.k_window - result.n_rejected
            for j in range(min(request.k_window, len(self._verified))):
                self._verified[j] += 1
                self._accepted[j] += j < n_accepted

    def sent(self, entries: Iterable[ReqEntry], round_us: float) -> None:
        """A STEP went out, and was answered or given up after `round_us`."""
        self._counts["steps_sent"] += 1
        self._round_us.append(round_us)
        for entry in entries:
            self._counts["rows_sent"] += entry.n_rows
            self._counts["resyncs"] += bool(entry.req_flags & RESYNC)

    def answered(self, entries: Iterable[ReqEntry], statuses: Iterable[ReqStatus]) -> None:
        """An accepted reply."""
        for entry, status in zip(entries, statuses, strict=True):
            if status.status:
                self._counts[_ENTRY_COUNTERS[EntryStatus(status.status)]] += 1
            if entry.req_flags & NEED_DRAFT and status.status <= EntryStatus.PARTIAL_WINDOW:
                self._counts["drafted_requests"] += 1

    def ended(self, outcome: Outcome) -> None:
        self._counts[outcome.counter] += 1

    def count(self, outcome: Outcome) -> int:
        """How many rounds came to this."""
        return self._counts[outcome.counter]

    def snapshot(self) -> dict[str, Any]:
        """Counts, accepted and verified drafts per position, and times in µs (None: no STEP yet).

        `accepted[j]` of `verified[j]` drafts at position j were the target's own choice.
        """
        times = sorted(self._round_us)
        return {
            **self._counts,
            "verified": [*self._verified],
            "accepted": [*self._accepted],
            "round_us_p50": _percentile(times, 0.50),
            "round_us_p99": _percentile(times, 0.99),
            "last_bad_reply": self.last_bad_reply,
        }


def _percentile(ordered: Sequence[float], share: float) -> float | None:
    """Nearest rank; None of nothing."""
    if not ordered:
        return None
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)
