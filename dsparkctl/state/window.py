"""The window rule (§7.2): which positions a slot holds, and what one entry of a STEP does to it.

Decides statuses and ranges. Refuses to know who asks: the same rule keeps the worker's windows and
rank 0's ring (§7.3). Rows themselves live elsewhere, keyed by position mod W.

Every step of §7.2 happens in order, so an entry that fails validation has already adopted its
generation (R22), and an entry without rows has already rolled the window back (R16).
"""

from typing import Final, NamedTuple

from dsparkctl.contract.codes import NEED_DRAFT, NEW_GEN, EntryStatus
from dsparkctl.contract.records import ReqEntry
from dsparkctl.contract.serial import is_older


class Window(NamedTuple):
    """The contiguous positions `lo..hi` that are held; `EMPTY` has hi −1 (R17)."""

    lo: int
    hi: int


EMPTY: Final = Window(0, -1)


class Slot(NamedTuple):
    """What is known of one request slot. Generation None: any is accepted (R23)."""

    generation: int | None
    window: Window


VACANT: Final = Slot(None, EMPTY)


class Bounds(NamedTuple):
    """What an entry may say, as HELLO settled it."""

    width: int
    """W: rows kept and sent per request."""
    vocab_size: int
    max_model_len: int


class Outcome(NamedTuple):
    """What one entry came to. `refusal` says why for STALE_GENERATION and BAD_ENTRY, else empty."""

    slot: Slot
    status: EntryStatus
    window_rows: int
    refusal: str


def apply_entry(slot: Slot, entry: ReqEntry, bounds: Bounds) -> Outcome:
    """§7.2 steps 1 to 5 for one entry; the drafting itself is the caller's."""
    if slot.generation is not None and is_older(entry.generation, slot.generation):
        reason = f"generation {entry.generation} is older than {slot.generation}"
        return Outcome(slot, EntryStatus.STALE_GENERATION, 0, reason)
    window = slot.window
    if entry.generation != slot.generation or entry.req_flags & NEW_GEN:
        window = EMPTY

    reason = _invalid(entry, bounds)
    if not reason:
        if entry.n_rows:
            window = extended(window, entry.first_pos, entry.n_rows, bounds.width)
        elif window.hi + 1 < entry.anchor_pos:
            reason = f"no rows, and anchor_pos {entry.anchor_pos} is beyond {window.hi + 1}"
        else:
            window = rolled_back(window, entry.anchor_pos)
            if window.hi != entry.anchor_pos - 1:
                reason = f"nothing is held below anchor_pos {entry.anchor_pos} (R16)"

    slot = Slot(entry.generation, window)
    if reason:
        return Outcome(slot, EntryStatus.BAD_ENTRY, 0, reason)
    rows = rows_before(window, entry.anchor_pos, bounds.width)
    short = rows < min(bounds.width, entry.anchor_pos)
    # R19: without NEED_DRAFT a short window is no news.
    partial = short and entry.req_flags & NEED_DRAFT
    return Outcome(slot, EntryStatus.PARTIAL_WINDOW if partial else EntryStatus.OK, rows, "")


def extended(window: Window, first_pos: int, n_rows: int, width: int) -> Window:
    """§7.2.3: `n_rows` > 0 rows from `first_pos` on; a gap restarts, an overlap rolls back."""
    lo, hi = window
    lo = first_pos if hi < lo or first_pos > hi + 1 else min(lo, first_pos)
    hi = first_pos + n_rows - 1
    return Window(max(lo, hi - width + 1), hi)


def rolled_back(window: Window, anchor_pos: int) -> Window:
    """The window without the positions from `anchor_pos` on; EMPTY when none are left (R16)."""
    if anchor_pos <= window.lo:
        return EMPTY
    return Window(window.lo, anchor_pos - 1)


def rows_before(window: Window, anchor_pos: int, width: int) -> int:
    """§7.2.4 `window_rows`: how many held rows the block at `anchor_pos` sees, never negative."""
    return max(0, window.hi - max(window.lo, anchor_pos - width) + 1)


def _invalid(entry: ReqEntry, bounds: Bounds) -> str:
    """§7.2.2 and the readings beside it: why the entry is refused, or nothing."""
    if entry.n_rows > bounds.width:
        return f"n_rows {entry.n_rows}, a window has {bounds.width}"
    if entry.n_rows:
        if entry.first_pos < 0:
            return f"first_pos {entry.first_pos} is negative"
        if entry.anchor_pos != entry.first_pos + entry.n_rows:
            return f"anchor_pos {entry.anchor_pos} != {entry.first_pos} + {entry.n_rows}"
    if entry.anchor_pos > bounds.max_model_len:
        return f"anchor_pos {entry.anchor_pos} > max_model_len {bounds.max_model_len} (R30)"
    if entry.req_flags & NEED_DRAFT and not 0 <= entry.anchor_token < bounds.vocab_size:
        return f"anchor_token {entry.anchor_token}, vocabulary {bounds.vocab_size} (R28)"
    return ""
