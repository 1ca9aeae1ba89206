"""What one round means to the breaker and to the slots (§7.4, §9.2, §10).

Decides whether a round was a failed attempt, a success or neither, and which slots rank 0 can no
longer vouch for. Refuses to know how a round failed: whatever is not an accepted reply, failed.
"""

from collections.abc import Iterable, Sequence
from enum import Enum

from dsparkctl.contract.codes import NEED_DRAFT, EntryStatus
from dsparkctl.contract.records import ReqEntry, ReqStatus


class Verdict(Enum):
    """A round as the breaker counts it."""

    SUCCESS = "success"
    FAILURE = "failure"
    NEUTRAL = "neutral"
    """Nothing was sent, or nothing was drafted (§10, v1.8; C12)."""


def verdict_of(entries: Sequence[ReqEntry], statuses: Iterable[ReqStatus]) -> Verdict:
    """Of a STEP with an accepted reply: did drafting work for anyone who needed it?

    A window that is short everywhere still drafts: a success (C13).
    """
    needed = [
        status.status <= EntryStatus.PARTIAL_WINDOW
        for entry, status in zip(entries, statuses, strict=True)
        if entry.req_flags & NEED_DRAFT
    ]
    if not needed:
        return Verdict.NEUTRAL
    return Verdict.SUCCESS if any(needed) else Verdict.FAILURE


def dirty_slots(entries: Sequence[ReqEntry], statuses: Iterable[ReqStatus]) -> list[int]:
    """The slots whose status is other than OK (§7.4)."""
    return [
        entry.slot
        for entry, status in zip(entries, statuses, strict=True)
        if status.status != EntryStatus.OK
    ]
