"""What the desk asks of a drafter.

Decides nothing: it only names the two verbs (`append`, `draft`) between the desk, which
knows the contract's rules, and a drafter, which knows how to turn windows of tap rows into drafts.
A drafter never sees a session, a generation or a status; the desk never sees a tensor.

Faults are values here: one entry's fault must never reach another entry (R29).
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Append(NamedTuple):
    """Rows of one entry, kept under positions `first_pos .. first_pos + n_rows - 1` (§7.2.3)."""

    slot: int
    first_pos: int
    n_rows: int
    rows: memoryview
    """`n_rows * row_bytes` bytes, little-endian bf16, a view that lives only during the call."""


class DraftRequest(NamedTuple):
    """One block to draft (§7.2.5): the window is `[lo_pos, anchor_pos - 1]`, empty when equal."""

    slot: int
    lo_pos: int
    anchor_pos: int
    anchor_token: int
    n_out: int
    """1..N: positions at and behind it skip head, Markov and confidence, and are zeros (§6.3)."""


class Draft(NamedTuple):
    """N draft ids, confidences in [0, 1] and, where asked for, margins; zeros from `n_out` on."""

    ids: Sequence[int]
    confidence: Sequence[float]
    margin: Sequence[float]


class Fault(NamedTuple):
    """Why one entry could not be stored or drafted; the desk answers it with INTERNAL (§9.2)."""

    reason: str


class Drafter(Protocol):
    """Windows of tap rows in, drafts out. Slots are 0..max_slots; the last one is the self-test's.

    Both verbs take a whole STEP's entries (their slots are unique) and answer one value per entry,
    in order. An exception is allowed to escape: the desk then asks again entry by entry.
    """

    @property
    def backend(self) -> str:
        """Name of the implementation that runs, as STATS and the ready line print it."""

    def append(self, parts: Sequence[Append]) -> Sequence[Fault | None]:
        """Keep the rows. A row that is not finite is kept too (its positions are held), and is a
        fault of its entry; it must not outlive its stay in the window (R29)."""

    def draft(
        self, requests: Sequence[DraftRequest], *, max_model_len: int, want_margin: bool
    ) -> Sequence[Draft | Fault]:
        """Draft one block per request; query positions are clamped to `max_model_len - 1`."""
