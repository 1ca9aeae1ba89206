"""Thousands of random steps against the window rule (§7.2), and their windows against drafts.

Decides which steps a session is led through, and remembers every row that a slot should hold, so
that at the end the same window can be built by a shorter way: equal windows give equal drafts.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from dsparkctl.conform.checks.entries import near
from dsparkctl.conform.finding import Clause, Finding
from dsparkctl.conform.rows import block
from dsparkctl.conform.subject import Drafted, Subject, entry, told
from dsparkctl.contract.codes import NEED_DRAFT, NEW_GEN, RESYNC, EntryStatus
from dsparkctl.contract.records import ReqEntry
from dsparkctl.state.window import VACANT, Bounds, Outcome, Slot, apply_entry

_REMEMBERED = 24
"""Windows that are built again."""


@dataclass
class Track:
    """What one slot should hold: the rule's state, and the name of the row at each position."""

    slot: Slot = VACANT
    names: dict[int, str] = field(default_factory=dict)

    def apply(self, one: ReqEntry, name: str, bounds: Bounds) -> Outcome:
        outcome = apply_entry(self.slot, one, bounds)
        is_applied = outcome.status in (EntryStatus.OK, EntryStatus.PARTIAL_WINDOW)
        self.slot = outcome.slot
        if is_applied and one.n_rows:
            for pos in range(one.first_pos, one.first_pos + one.n_rows):
                self.names[pos] = name
        lo, hi = self.slot.window
        self.names = {pos: held for pos, held in self.names.items() if lo <= pos <= hi}
        return outcome


def walk(on: Subject, n_rounds: int) -> Iterator[Finding]:
    """A random walk, then some of its windows by a shorter way."""
    dice, hello = on.dice("walk"), on.hello
    bounds = Bounds(hello.window, hello.vocab_size, hello.max_model_len)
    clause = Clause("§7.2", f"{n_rounds} random steps come to what the window rule says")
    kept: list[tuple[ReqEntry, dict[int, str], Drafted]] = []
    seen = dict.fromkeys(EntryStatus, 0)
    with on.session() as talk:
        tracks = [Track() for _ in range(hello.max_slots)]
        for number in range(n_rounds):
            entries = _entries(dice, tracks, hello.window, bounds)
            names = [f"{number}/{one.slot}" for one in entries]
            rows = b"".join(
                block(name, range(one.first_pos, one.first_pos + one.n_rows), hello.row_bytes)
                for name, one in zip(names, entries, strict=True)
            )
            found = talk.drafted(entries, rows)
            for one, name, drafted in zip(entries, names, found, strict=True):
                track = tracks[one.slot]
                outcome = track.apply(one, name, bounds)
                if fault := _fault(outcome, one, drafted):
                    yield clause.judged(f"step {number + 1}, {told([one])}: {fault}", _seed(on))
                    return
                seen[outcome.status] += 1
                if len(entries) == 1 and not one.n_out and _is_drafted(one, outcome):
                    kept.append((one, dict(track.names), drafted))
    counts = ", ".join(f"{status.name} {count}" for status, count in seen.items() if count)
    yield clause.judged("", _seed(on), counts)
    dice.shuffle(kept)
    yield _again(on, kept[:_REMEMBERED])


def _is_drafted(one: ReqEntry, outcome: Outcome) -> bool:
    is_good = outcome.status <= EntryStatus.PARTIAL_WINDOW and outcome.window_rows > 0
    return bool(one.req_flags & NEED_DRAFT) and is_good


def _again(on: Subject, kept: list[tuple[ReqEntry, dict[int, str], Drafted]]) -> Finding:
    """Each window by one append, in a slot that knows nothing else."""
    clause = Clause("§7.2 §7.4", "equal windows by different histories give equal drafts")
    if not kept:
        return clause.skipped("no step drafted alone")
    exact, width = 0, on.hello.window
    with on.session() as talk:
        for one, names, before in kept:
            first = min(names)
            positions = range(max(first, one.anchor_pos - width), one.anchor_pos)
            rows = b"".join(
                block(names[pos], range(pos, pos + 1), on.hello.row_bytes) for pos in positions
            )
            whole = entry(
                0, positions[0], len(positions), req_flags=NEED_DRAFT | NEW_GEN | RESYNC,
                anchor_token=one.anchor_token,
            )  # fmt: skip
            (now,) = talk.drafted([whole], rows)
            if not near(now, before):
                said = f"{now.draft_ids} for {before.draft_ids} at anchor {one.anchor_pos}"
                return clause.judged(said, _seed(on))
            exact += now.confidence == before.confidence
    return clause.judged("", _seed(on), f"{exact} of {len(kept)} bit for bit")


def _fault(expected: Outcome, one: ReqEntry, drafted: Drafted) -> str:
    status, rows = drafted.status.status, drafted.status.window_rows
    is_partial = status == EntryStatus.PARTIAL_WINDOW and not one.req_flags & NEED_DRAFT
    if is_partial and rows < min(one.anchor_pos, rows + 1):
        status = EntryStatus.OK  # R19 is a reading
    if status >= EntryStatus.STALE_GENERATION:
        rows = 0  # so is R20
    if (status, rows) == (expected.status, expected.window_rows):
        return ""
    wanted = f"{expected.status.name} {expected.window_rows}"
    return f"{EntryStatus(status).name} {rows}; expected {wanted}"


def _entries(
    dice: random.Random, tracks: list[Track], width: int, bounds: Bounds
) -> list[ReqEntry]:
    slots = dice.sample(range(len(tracks)), min(len(tracks), dice.choice((1, 1, 1, 2, 4))))
    return [_entry(dice, slot, tracks[slot].slot, width, bounds) for slot in slots]


def _entry(dice: random.Random, slot: int, state: Slot, width: int, bounds: Bounds) -> ReqEntry:
    """Mostly what a Spark would send, and what it would not; nothing that a reading decides."""
    lo, hi = state.window
    generation = state.generation if state.generation is not None else dice.getrandbits(32)
    flags = dice.choice((NEED_DRAFT, NEED_DRAFT, NEED_DRAFT, 0))
    n = min(width, dice.choice((1, 1, 2, 3, 6, 6, dice.randint(1, 8))))
    if dice.random() < 0.02:
        n = width
    step = dice.choice((0, 0, 0, 0, 0, 0, -1, -2, -dice.randint(0, 12), 1, dice.randint(2, 9)))
    first = max(0, min(hi + 1 + step, bounds.max_model_len - n))
    if dice.random() < 0.01:
        first = 0
    anchor = first + n
    if dice.random() < 0.15 and hi > lo:
        n, anchor = 0, dice.randint(lo + 1, hi + 2)  # at or below lo readings differ (R16)
    elif dice.random() < 0.03:
        anchor += dice.choice((1, -1, 5))  # with another generation, R22 would decide
    elif dice.random() < 0.06:
        generation = (generation + dice.choice((1, 1, 7, 2**31 - 1, -1))) % 2**32
    elif dice.random() < 0.05:
        flags |= dice.choice((NEW_GEN, NEW_GEN | RESYNC))
    n_out, token = dice.choice((0, 0, 0, 1, 2)), dice.randrange(bounds.vocab_size)
    return ReqEntry(slot, flags, dice.randint(0, 6), n_out, generation, first, n, token, anchor)


def _seed(on: Subject) -> str:
    return f"seed {on.seed}"
