"""What the Spark refuses in a STEP reply (§6.3, v1.4): nothing of it may reach the target then.

Decides whether every value may be used. Refuses to know what a refusal leads to (a failed round, a
dropped connection, a resync): that is the round's business.
"""

from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

from dsparkctl.contract.codes import NEED_DRAFT, EntryStatus
from dsparkctl.contract.messages import StepReply
from dsparkctl.contract.records import ReqEntry, ReqStatus


class Asked(NamedTuple):
    """The STEP that a reply must answer."""

    step_id: int
    entries: Sequence[ReqEntry]
    num_spec: int
    window: int
    vocab_size: int


def refusal(reply: StepReply, asked: Asked) -> str:
    """Why rank 0 must refuse the reply, or an empty string when every value may be used."""
    head, n = reply.head, asked.num_spec
    if head.step_id != asked.step_id:
        return f"step_id {head.step_id}, expected {asked.step_id}"
    if head.n_req != len(asked.entries):
        return f"n_req {head.n_req}, expected {len(asked.entries)}"
    if head.num_spec != n:
        return f"num_spec {head.num_spec}, expected {n}"
    for i, (entry, status) in enumerate(zip(asked.entries, reply.statuses, strict=True)):
        reason = _bad_status(entry, status, asked.window)
        if reason:
            return f"entry {i}: {reason}"
        consumed = n_consumed(entry, status, n)
        for j in range(n):
            at = i * n + j
            margin = reply.margin[at] if reply.margin is not None else 0.0
            values = (reply.draft_ids[at], reply.confidence[at], margin)
            reason = _bad_draft(*values, asked.vocab_size) if j < consumed else _nonzero(*values)
            if reason:
                return f"entry {i}, position {j}: {reason}"
    return ""


def n_consumed(entry: ReqEntry, status: ReqStatus, num_spec: int) -> int:
    """How many leading positions of an entry carry drafts; n_out 0 or above N means N (R26)."""
    if not entry.req_flags & NEED_DRAFT or status.status > EntryStatus.PARTIAL_WINDOW:
        return 0
    return min(entry.n_out or num_spec, num_spec)


def _bad_status(entry: ReqEntry, status: ReqStatus, window: int) -> str:
    if status.generation != entry.generation:
        return f"generation {status.generation}, expected {entry.generation}"
    if status.status > EntryStatus.INTERNAL:
        return f"status {status.status} is not a code of §9.2"
    expected = max(0, min(window, entry.anchor_pos))  # R18: a negative anchor has no rows
    rows = status.window_rows
    if rows > expected:
        return f"window_rows {rows} of at most {expected}"
    if entry.req_flags & NEED_DRAFT:
        if status.status == EntryStatus.OK and rows != expected:
            return f"OK with window_rows {rows}, expected {expected}"
        if status.status == EntryStatus.PARTIAL_WINDOW and rows >= expected:
            return f"PARTIAL_WINDOW with a full window of {rows} rows"
    return ""


def _bad_draft(draft_id: int, confidence: float, margin: float, vocab_size: int) -> str:
    if not 0 <= draft_id < vocab_size:
        return f"draft id {draft_id}, vocabulary {vocab_size}"
    if not 0.0 <= confidence <= 1.0:
        return f"confidence {confidence}, expected 0 to 1"
    # NaN fails every comparison, so both tests also refuse it.
    if not (margin >= 0.0 and isfinite(margin)):
        return f"margin {margin}, expected a finite value from 0 on"
    return ""


def _nonzero(draft_id: int, confidence: float, margin: float) -> str:
    """A position nobody consumes holds zeros; −0.0 is zero, NaN is not (C20)."""
    if draft_id != 0:
        return f"draft id {draft_id} where none is consumed"
    if confidence != 0.0:
        return f"confidence {confidence} where none is consumed"
    if margin != 0.0:
        return f"margin {margin} where none is consumed"
    return ""
