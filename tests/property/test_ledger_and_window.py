"""Rank 0's book on one side, the worker's window rule on the other, and everything between them.

Whatever is lost, refused, rolled back, reused or restarted: the book holds what a plain dict of
rows holds (§7.1, §7.3), the worker never finds an entry bad or a generation old (§7.2), and after
every round it holds the very rows of each slot that the book calls clean (§7.4).
"""

from collections.abc import Sequence
from enum import Enum
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dsparkctl.contract.codes import NEED_DRAFT, NEW_GEN, RESYNC, EntryStatus
from dsparkctl.contract.layout import pack
from dsparkctl.contract.records import ReqEntry, ReqStatus
from dsparkctl.contract.serial import is_older
from dsparkctl.state.ledger import Ledger, Sampled, Scheduled
from dsparkctl.state.verdict import dirty_slots
from dsparkctl.state.window import VACANT, Bounds, Slot, apply_entry

N_SLOTS = 3
VOCAB = 100
MAX_LEN = 1 << 40


class Fate(Enum):
    """What becomes of a STEP."""

    ANSWERED = "applied, and its reply accepted"
    UNANSWERED = "applied, and its reply lost"
    LOST = "never arrived"
    REFUSED = "a frame error: not applied, the connection kept"
    FAILED_ON_ONE = "applied, and INTERNAL for its first entry"
    SKIPPED = "never sent"


class Step(Enum):
    """What a request does in an engine step."""

    DECODE = "rows right behind the last ones, some of them rejected"
    PREFILL = "a chunk right behind the last rows"
    LOWER = "the same request again from a lower position"
    GAP = "the same request further on"
    START = "a new request in this slot, from position 0"
    HIT = "a new request behind a prefix hit"


STEPS = st.tuples(st.sampled_from(Step), st.integers(1, 20), st.integers(0, 19), st.booleans())
# Slots and steps in any order; several slots in a round, each at most once (§6.3).
ROUND = st.lists(
    st.tuples(st.integers(0, N_SLOTS - 1), STEPS), min_size=1, unique_by=lambda part: part[0]
)


class LedgerMachine(RuleBasedStateMachine):
    @initialize(
        width=st.integers(2, 8), generation=st.sampled_from([0, 0x7FFFFFFD, 0xFFFFFFFA, 0xFFFFFFFF])
    )
    def start(self, width: int, generation: int) -> None:
        self.width = width
        self.ledger = Ledger(N_SLOTS, width, generation)
        self.ring: dict[tuple[int, int], int] = {}
        self.contents, self.names = count(1), count(1)
        # The model: who owns each slot, and its rows by position.
        self.owners = [""] * N_SLOTS
        self.held: list[dict[int, int]] = [{} for _ in range(N_SLOTS)]
        self.newest: dict[int, tuple[int, str]] = {}
        # The worker: the slots of its rule, its rows by position mod W.
        self.slots = [VACANT] * N_SLOTS
        self.worker_ring: dict[tuple[int, int], int] = {}

    @rule(parts=ROUND, fate=st.sampled_from(Fate), n_out=st.integers(0, 3))
    def engine_round(
        self, parts: list[tuple[int, tuple[Step, int, int, bool]]], fate: Fate, n_out: int
    ) -> None:
        requests: list[Scheduled] = []
        sampled: list[Sampled] = []
        rows: list[int] = []
        for slot, (step, size, back, draft) in parts:
            request, n_rejected = self.scheduled(slot, step, size, back, len(rows))
            requests.append(request)
            sampled.append(Sampled(n_rejected, draft, 1))
            rows += [next(self.contents) for _ in range(request.n_rows)]

        dirty = {slot for slot, page in enumerate(self.ledger.pages) if page.is_dirty}
        opened = self.ledger.open(requests)
        for part, result in zip(opened, sampled, strict=True):
            for i in range(part.n_rows - result.n_rejected):
                self.ring[part.slot, (part.first_pos + i) % self.width] = rows[part.row + i]
        sent = [
            [self.ring[part.slot, pos % self.width] for pos in part.sent(s.n_rejected, self.width)]
            for part, s in zip(opened, sampled, strict=True)
        ]
        entries = self.ledger.close(opened, sampled, n_out)
        for request, result in zip(requests, sampled, strict=True):
            self.remember(request, result, rows)
        self.check(entries, sampled, sent, dirty)
        self.meet(fate, entries, sent)

    def scheduled(
        self, slot: int, step: Step, size: int, back: int, row: int
    ) -> tuple[Scheduled, int]:
        """The request as the engine has it, and how many of its rows the target rejects."""
        owner = self.owners[slot]
        if step in (Step.START, Step.HIT) or not owner:
            first_pos = back + 1 if step is Step.HIT else 0
            return Scheduled(f"request {next(self.names)}", slot, row, first_pos, size, 0), 0
        end = max(self.held[slot], default=-1) + 1
        if step is Step.DECODE:
            n_rows = min(size, self.width - 1)
            return Scheduled(owner, slot, row, end, n_rows, n_rows - 1), back % n_rows
        first_pos = {Step.LOWER: max(0, end - back), Step.GAP: end + back}.get(step, end)
        return Scheduled(owner, slot, row, first_pos, size, 0), 0

    def remember(self, request: Scheduled, sampled: Sampled, rows: Sequence[int]) -> None:
        """§7.1 and §7.2.3 on a dict, without `window.py`."""
        if request.request_id != self.owners[request.slot]:
            self.owners[request.slot] = request.request_id
            self.held[request.slot] = {}
        held = self.held[request.slot]
        n_candidates = min(request.n_rows, self.width)
        end = request.first_pos + request.n_rows
        first_pos = end - n_candidates
        if held and first_pos > max(held) + 1:
            held.clear()
        for pos in [pos for pos in held if pos >= first_pos]:
            del held[pos]
        for pos in range(first_pos, end - sampled.n_rejected):
            held[pos] = rows[request.row + pos - request.first_pos]
        for pos in [pos for pos in held if pos <= max(held) - self.width]:
            del held[pos]

    def check(
        self,
        entries: list[ReqEntry],
        sampled: list[Sampled],
        sent: list[list[int]],
        dirty: set[int],
    ) -> None:
        """§6.3, §7.1, §7.2.2: what every entry must be, sent or not."""
        for entry, result, rows in zip(entries, sampled, sent, strict=True):
            assert pack(entry)
            assert 0 < entry.n_rows <= self.width
            assert entry.first_pos >= 0
            assert entry.anchor_pos == entry.first_pos + entry.n_rows
            assert entry.anchor_pos == max(self.held[entry.slot]) + 1
            assert rows == [self.held[entry.slot][entry.first_pos + i] for i in range(len(rows))]
            assert len(rows) == entry.n_rows
            assert bool(entry.req_flags & NEED_DRAFT) == result.needs_draft
            # §7.1: another generation with another owner, and with nothing else.
            newest, owner = self.newest.get(entry.slot, (entry.generation, None))
            assert not is_older(entry.generation, newest)
            assert (entry.generation != newest) is (owner not in (None, self.owners[entry.slot]))
            # §7.1, §7.4: NEW_GEN for a new owner; with RESYNC for a slot that was dirty.
            is_new, was_dirty = owner != self.owners[entry.slot], entry.slot in dirty
            assert bool(entry.req_flags & NEW_GEN) is (is_new or was_dirty)
            assert bool(entry.req_flags & RESYNC) is (was_dirty and not is_new)
            self.newest[entry.slot] = (entry.generation, self.owners[entry.slot])

    def meet(self, fate: Fate, entries: list[ReqEntry], sent: list[list[int]]) -> None:
        """The STEP's way to the worker, and what rank 0 learns of it (§7.4, §9)."""
        slots = [entry.slot for entry in entries]
        if fate in (Fate.LOST, Fate.REFUSED, Fate.SKIPPED):
            self.ledger.soil(slots)
            return
        statuses = [self.apply(*pair) for pair in zip(entries, sent, strict=True)]
        if fate is Fate.UNANSWERED:
            self.ledger.soil_all()
            return
        if fate is Fate.FAILED_ON_ONE:
            statuses[0] = statuses[0]._replace(status=EntryStatus.INTERNAL)
        self.ledger.clean(slots)
        self.ledger.soil(dirty_slots(entries, statuses))

    def apply(self, entry: ReqEntry, rows: list[int]) -> ReqStatus:
        """The worker's turn: §7.2."""
        outcome = apply_entry(self.slots[entry.slot], entry, Bounds(self.width, VOCAB, MAX_LEN))
        assert not outcome.refusal, (outcome, entry)
        for pos, row in zip(count(entry.first_pos), rows, strict=False):
            self.worker_ring[entry.slot, pos % self.width] = row
        self.slots[entry.slot] = outcome.slot
        return ReqStatus(outcome.status, outcome.window_rows, entry.generation)

    @rule()
    def worker_restarts(self) -> None:
        """§6.2, §7.4: it holds nothing, and rank 0 learns so by the reconnect or NO_SESSION."""
        self.slots = [VACANT] * N_SLOTS
        self.worker_ring.clear()
        self.ledger.soil_all()

    @rule()
    def reconnects(self) -> None:
        """§7.4: the worker kept its windows; rank 0 cannot know."""
        self.ledger.soil_all()

    @invariant()
    def the_book_holds_what_the_model_holds(self) -> None:
        """§7.3."""
        for slot, page in enumerate(self.ledger.pages):
            lo, hi = page.window
            ring = {pos: self.ring[slot, pos % self.width] for pos in range(lo, hi + 1)}
            assert ring == self.held[slot]

    @invariant()
    def the_worker_holds_the_rows_of_every_clean_slot(self) -> None:
        """§7.4: a clean slot's next entry carries the new rows alone."""
        for slot, page in enumerate(self.ledger.pages):
            if page.is_dirty or page.owner is None:
                continue
            known: Slot = self.slots[slot]
            assert known.generation == page.generation
            lo, hi = known.window
            ring = {pos: self.worker_ring[slot, pos % self.width] for pos in range(lo, hi + 1)}
            assert ring == self.held[slot]


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=150, stateful_step_count=30)
