"""Rank 0's book (§7.1, §7.3, §7.4): who owns each slot, which rows it holds, what must be re-sent.

Decides generations, ranges and the entries of a STEP. Refuses to know rows, connections and time.

A round asks twice, since only the device knows how many drafts were rejected, and the host does not
wait for it more than once (§4.2). `open` settles all that is known before: owners, candidate rows,
where a window would begin. `close` adds what the device said and writes the entries.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dsparkctl.contract.codes import NEED_DRAFT, NEW_GEN, RESYNC
from dsparkctl.contract.records import ReqEntry
from dsparkctl.contract.serial import following
from dsparkctl.state.window import EMPTY, Window, extended, rolled_back


class Scheduled(NamedTuple):
    """One request of the engine's batch, as the host knows it before the device has answered."""

    request_id: str
    slot: int
    row: int
    """Where the request's span begins in the tap tensors."""
    first_pos: int
    """Position of the span's first row."""
    n_rows: int
    """q: scheduled rows, those of rejected drafts included; at least 1."""
    k_window: int
    """Drafts that the target verified in this step; 0 for prefill (informative)."""


class Sampled(NamedTuple):
    """What only the device knew (§2, §4.3)."""

    n_rejected: int
    needs_draft: bool
    """False: a partial prefill chunk, nothing was sampled."""
    anchor_token: int


class Part(NamedTuple):
    """A request's part of a round before the device has answered: what to keep, what to send."""

    slot: int
    row: int
    """Of the first candidate row, in the tap tensors."""
    first_pos: int
    """Of the first candidate row."""
    n_rows: int
    """Candidate rows: the last min(q, W) of the span (§4.3)."""
    lo_pos: int
    """The lowest position the window would hold with them, were it not W long."""
    resyncs: bool
    """The whole window is sent, not just the new rows (§7.4)."""
    is_new: bool
    """The slot has a new owner (§7.1)."""
    k_window: int

    def sent(self, n_rejected: int, width: int) -> range:
        """The positions whose rows go into the STEP; they end at the anchor."""
        anchor_pos = self.first_pos + self.n_rows - n_rejected
        first = max(self.lo_pos, anchor_pos - width) if self.resyncs else self.first_pos
        return range(first, anchor_pos)


class Page(NamedTuple):
    """One slot of the book. A new owner takes the generation after the last one's."""

    owner: str | None
    generation: int
    window: Window
    is_dirty: bool


class Ledger:
    """The pages of all slots; `width` is W, `generation` where each slot's count begins."""

    def __init__(self, max_slots: int, width: int, generation: int = 0) -> None:
        self.pages = [Page(None, generation, EMPTY, False)] * max_slots
        self._width = width

    def open(self, requests: Iterable[Scheduled]) -> list[Part]:
        """Owners and generations of this round (§7.1), and each request's candidate rows (§4.3)."""
        return [self._open(request) for request in requests]

    def close(
        self, parts: Sequence[Part], sampled: Sequence[Sampled], n_out: int
    ) -> list[ReqEntry]:
        """The entries of this round's STEP, in batch order; the windows then hold its rows.

        `n_out` is what an entry with NEED_DRAFT asks for (§6.3).
        """
        return [self._close(p, s, n_out) for p, s in zip(parts, sampled, strict=True)]

    def soil(self, slots: Iterable[int]) -> None:
        """Nobody knows what the worker holds of these slots: send the window next time (§7.4)."""
        for slot in slots:
            if not self.pages[slot].is_dirty:
                self.pages[slot] = self.pages[slot]._replace(is_dirty=True)

    def clean(self, slots: Iterable[int]) -> None:
        """The worker said OK: it holds what this book says."""
        for slot in slots:
            if self.pages[slot].is_dirty:
                self.pages[slot] = self.pages[slot]._replace(is_dirty=False)

    def soil_all(self) -> None:
        """After a reconnect, NO_SESSION, STALE_SEQ or a refused reply (§6.3, §7.4)."""
        self.soil(range(len(self.pages)))

    def _open(self, request: Scheduled) -> Part:
        page = self.pages[request.slot]
        is_new = request.request_id != page.owner
        if is_new:
            # A new owner begins with an empty window on both sides: there is nothing to re-send.
            page = Page(request.request_id, following(page.generation), EMPTY, False)
            self.pages[request.slot] = page
        n_rows = min(request.n_rows, self._width)
        n_before = request.n_rows - n_rows
        first_pos = request.first_pos + n_before
        lo, hi = page.window
        lo_pos = first_pos if hi < lo or first_pos > hi + 1 else min(lo, first_pos)
        return Part(
            request.slot,
            request.row + n_before,
            first_pos,
            n_rows,
            lo_pos,
            page.is_dirty,
            is_new,
            request.k_window,
        )

    def _close(self, part: Part, sampled: Sampled, n_out: int) -> ReqEntry:
        page = self.pages[part.slot]
        positions = part.sent(sampled.n_rejected, self._width)
        anchor_pos = positions.stop
        n_kept = part.n_rows - sampled.n_rejected
        if n_kept:
            window = extended(page.window, part.first_pos, n_kept, self._width)
        else:
            # Without a row behind a gap the worker refuses the entry and keeps its window (§7.2.3).
            window = rolled_back(page.window, min(anchor_pos, page.window.hi + 1))
        self.pages[part.slot] = page._replace(window=window)
        flags = NEED_DRAFT if sampled.needs_draft else 0
        if part.is_new:
            flags |= NEW_GEN
        if part.resyncs:
            flags |= NEW_GEN | RESYNC
        return ReqEntry(
            slot=part.slot,
            req_flags=flags,
            k_window=part.k_window,
            n_out=n_out if sampled.needs_draft else 0,
            generation=page.generation,
            first_pos=positions.start,
            n_rows=len(positions),
            anchor_token=sampled.anchor_token,
            anchor_pos=anchor_pos,
        )
