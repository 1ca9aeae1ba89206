"""The window rule against a dict of rows, written straight from §7.2 and without `window.py`.

The rule under test knows only `[lo, hi]`; the rows lie in a ring keyed by position mod W, as on
the worker and on rank 0 (§7.1, §7.3). The model holds each row under its own position.
"""

from itertools import count
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dsparkctl.contract.codes import NEED_DRAFT, NEW_GEN, RESYNC, EntryStatus
from dsparkctl.contract.layout import pack
from dsparkctl.contract.records import ReqEntry, ReqStatus
from dsparkctl.state.window import VACANT, Bounds, Slot, apply_entry

N_SLOTS = 3
VOCAB = 100
I64 = (-(1 << 63), (1 << 63) - 1)

GENERATIONS = st.sampled_from(
    [0, 1, 2, 0x7FFFFFFE, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFE, 0xFFFFFFFF]
)
FLAGS = st.integers(0, 7)
TOKENS = st.sampled_from([0, 1, VOCAB - 1, VOCAB, -1])
STRANGE_POSITIONS = st.one_of(st.integers(-3, 30), st.integers(*I64), st.sampled_from(I64))


class Model:
    """One slot as §7.2 describes it: a generation and the rows it holds, by position."""

    def __init__(self) -> None:
        self.generation: int | None = None
        self.rows: dict[int, int] = {}

    def apply(self, entry: ReqEntry, contents: list[int], bounds: Bounds) -> tuple[int, int]:
        """The status and window_rows that the entry deserves."""
        width = bounds.width
        if self.generation is not None:
            distance = (entry.generation - self.generation) % 2**32
            if distance >= 2**31:  # R25
                return EntryStatus.STALE_GENERATION, 0
            if distance > 0:
                self.rows.clear()
        if entry.req_flags & NEW_GEN:
            self.rows.clear()
        self.generation = entry.generation

        need_draft = entry.req_flags & NEED_DRAFT
        if not 0 <= entry.n_rows <= width:
            return EntryStatus.BAD_ENTRY, 0
        if entry.n_rows > 0 and entry.first_pos < 0:
            return EntryStatus.BAD_ENTRY, 0
        if entry.n_rows > 0 and entry.anchor_pos != entry.first_pos + entry.n_rows:
            return EntryStatus.BAD_ENTRY, 0
        if entry.anchor_pos > bounds.max_model_len:  # R30
            return EntryStatus.BAD_ENTRY, 0
        if need_draft and entry.anchor_token not in range(bounds.vocab_size):  # R28
            return EntryStatus.BAD_ENTRY, 0

        hi = max(self.rows, default=-1)
        if entry.n_rows > 0:
            if self.rows and entry.first_pos > hi + 1:
                self.rows.clear()
            self.drop_from(entry.first_pos)
            self.rows |= dict(zip(count(entry.first_pos), contents, strict=False))
            hi = max(self.rows)
            self.rows = {pos: row for pos, row in self.rows.items() if pos > hi - width}
        else:
            if hi + 1 < entry.anchor_pos:
                return EntryStatus.BAD_ENTRY, 0
            self.drop_from(entry.anchor_pos)
            if max(self.rows, default=-1) != entry.anchor_pos - 1:  # R16, R18
                return EntryStatus.BAD_ENTRY, 0

        seen = sum(entry.anchor_pos - width <= pos < entry.anchor_pos for pos in self.rows)
        if need_draft and seen < min(width, entry.anchor_pos):
            return EntryStatus.PARTIAL_WINDOW, seen
        return EntryStatus.OK, seen

    def drop_from(self, pos: int) -> None:
        self.rows = {at: row for at, row in self.rows.items() if at < pos}


class WindowMachine(RuleBasedStateMachine):
    """Entries of every kind into a few slots, each applied to the rule and to the model."""

    @initialize(width=st.integers(1, 6), max_model_len=st.sampled_from([8, 40, 0xFFFFFFFF]))
    def start(self, width: int, max_model_len: int) -> None:
        self.bounds = Bounds(width, VOCAB, max_model_len)
        self.slots: list[Slot] = [VACANT] * N_SLOTS
        self.rings: list[dict[int, int]] = [{} for _ in range(N_SLOTS)]
        self.models = [Model() for _ in range(N_SLOTS)]
        self.contents = count(1)

    def send(self, slot: int, **fields: Any) -> None:
        entry = ReqEntry(slot=slot, k_window=0, n_out=0, **fields)
        n_rows = min(entry.n_rows, self.bounds.width)
        contents = [next(self.contents) for _ in range(n_rows)]
        outcome = apply_entry(self.slots[slot], entry, self.bounds)
        self.slots[slot] = outcome.slot
        if outcome.status in (EntryStatus.OK, EntryStatus.PARTIAL_WINDOW):
            for pos, row in zip(count(entry.first_pos), contents, strict=False):
                self.rings[slot][pos % self.bounds.width] = row
        expected = self.models[slot].apply(entry, contents, self.bounds)
        assert (outcome.status, outcome.window_rows) == expected
        assert pack(ReqStatus(outcome.status, outcome.window_rows, entry.generation))

    def current(self, slot: int) -> int:
        return self.models[slot].generation or 0

    @rule(slot=st.integers(0, N_SLOTS - 1), n_rows=st.integers(1, 6), flags=FLAGS)
    def append(self, slot: int, n_rows: int, flags: int) -> None:
        """What a decode round sends: rows right behind the window."""
        first_pos = max(self.models[slot].rows, default=-1) + 1
        self.send(
            slot,
            req_flags=flags & ~NEW_GEN,
            generation=self.current(slot),
            first_pos=first_pos,
            n_rows=n_rows,
            anchor_token=1,
            anchor_pos=first_pos + n_rows,
        )

    @rule(
        slot=st.integers(0, N_SLOTS - 1),
        shift=st.integers(-8, 4),
        n_rows=st.integers(0, 7),
        flags=FLAGS,
        token=TOKENS,
    )
    def near(self, slot: int, shift: int, n_rows: int, flags: int, token: int) -> None:
        """Overlaps, gaps, and roll-backs with rows and without."""
        pos = max(self.models[slot].rows, default=-1) + 1 + shift
        self.send(
            slot,
            req_flags=flags & ~NEW_GEN,
            generation=self.current(slot),
            first_pos=pos,
            n_rows=n_rows,
            anchor_token=token,
            anchor_pos=max(pos + n_rows, I64[0]),
        )

    @rule(slot=st.integers(0, N_SLOTS - 1), generation=GENERATIONS, flags=FLAGS)
    def own(self, slot: int, generation: int, flags: int) -> None:
        """A new owner, or an old one: a prompt from position 0 in another generation."""
        self.send(
            slot,
            req_flags=flags,
            generation=generation,
            first_pos=0,
            n_rows=2,
            anchor_token=1,
            anchor_pos=2,
        )

    @rule(slot=st.integers(0, N_SLOTS - 1))
    def resync(self, slot: int) -> None:
        """§7.4: the whole window again; it must hold what it held."""
        rows = self.models[slot].rows
        if rows:
            before = len(rows)
            self.send(
                slot,
                req_flags=NEW_GEN | NEED_DRAFT | RESYNC,
                generation=self.current(slot),
                first_pos=min(rows),
                n_rows=before,
                anchor_token=1,
                anchor_pos=max(rows) + 1,
            )
            assert len(self.models[slot].rows) == before

    @rule(
        slot=st.integers(0, N_SLOTS - 1),
        generation=st.one_of(GENERATIONS, st.integers(0, 0xFFFFFFFF)),
        flags=st.integers(0, 255),
        first_pos=STRANGE_POSITIONS,
        n_rows=st.one_of(st.integers(0, 7), st.integers(0, 0xFFFFFFFF)),
        anchor_pos=STRANGE_POSITIONS,
        token=st.integers(-(1 << 31), (1 << 31) - 1),
    )
    def hostile(
        self,
        slot: int,
        generation: int,
        flags: int,
        first_pos: int,
        n_rows: int,
        anchor_pos: int,
        token: int,
    ) -> None:
        """Whatever the fields can hold."""
        self.send(
            slot,
            req_flags=flags,
            generation=generation,
            first_pos=first_pos,
            n_rows=n_rows,
            anchor_token=token,
            anchor_pos=anchor_pos,
        )

    @invariant()
    def windows_hold_what_the_model_holds(self) -> None:
        for slot, ring, model in zip(self.slots, self.rings, self.models, strict=True):
            lo, hi = slot.window
            assert hi - lo + 1 <= self.bounds.width
            held = {pos: ring[pos % self.bounds.width] for pos in range(lo, hi + 1)}
            assert held == model.rows
            assert slot.generation == model.generation


TestWindowMachine = WindowMachine.TestCase
TestWindowMachine.settings = settings(max_examples=300, stateful_step_count=40)
