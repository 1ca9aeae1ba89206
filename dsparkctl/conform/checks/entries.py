"""What one entry comes to (§7.2): each edge by name, and then thousands of random steps."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dsparkctl.conform.finding import Clause, Finding
from dsparkctl.conform.rows import NOT_A_NUMBER
from dsparkctl.conform.subject import Drafted, Subject, entry
from dsparkctl.contract.codes import NEED_DRAFT, NEW_GEN, EntryStatus
from dsparkctl.contract.records import ReqEntry

OK, PARTIAL, STALE = EntryStatus.OK, EntryStatus.PARTIAL_WINDOW, EntryStatus.STALE_GENERATION
BAD, INTERNAL = EntryStatus.BAD_ENTRY, EntryStatus.INTERNAL

Came = tuple[int, int]
"""Entry status and window_rows."""


@dataclass(frozen=True, slots=True)
class Edge:
    """Entries that go before, each in a STEP of its own, the one that is judged, what may come."""

    clause: str
    what: str
    before: tuple[ReqEntry, ...]
    asked: ReqEntry
    allowed: dict[Came, str]


def _e(first: int, n: int, **of: Any) -> ReqEntry:
    return entry(0, first, n, **of)


def _edges(width: int, vocab: int) -> list[Edge]:
    """W is `width`; nothing here needs more than a few positions."""
    w = min(width, 4)
    four = _e(0, w)
    at_5 = {"generation": 5}
    return [
        Edge("§7.2.1", "an older generation is STALE_GENERATION", (_e(0, w, **at_5),),
             _e(w, 1, generation=4), {(STALE, 0): ""}),
        Edge("§7.2.1", "NEW_GEN makes no older generation acceptable", (_e(0, w, **at_5),),
             _e(0, 1, generation=4, req_flags=NEW_GEN | NEED_DRAFT), {(STALE, 0): ""}),
        Edge("§7.2.1", "an entry that is stale leaves the window",
             (_e(0, w, **at_5), _e(0, 1, generation=4)), _e(0, 0, anchor_pos=w, **at_5),
             {(OK, w): ""}),
        Edge("§7.2.1", "a newer generation empties the window", (_e(0, w, **at_5),),
             _e(0, 0, anchor_pos=w, generation=6), {(BAD, 0): ""}),
        Edge("§7.2.1", "NEW_GEN with the same generation empties the window", (four,),
             _e(0, 0, anchor_pos=w, req_flags=NEW_GEN | NEED_DRAFT), {(BAD, 0): ""}),
        Edge("§7.1", "generations wrap: 0 is newer than 2**32 - 1",
             (_e(0, w, generation=2**32 - 1),), _e(0, 1, generation=0), {(OK, 1): ""}),
        Edge("§7.1", "generations wrap: 2**32 - 1 is older than 0", (_e(0, w, generation=0),),
             _e(0, 1, generation=2**32 - 1), {(STALE, 0): ""}),
        Edge("§7.1 R25", "a generation 2**31 away", (_e(0, w, generation=7),),
             _e(0, 1, generation=7 + 2**31),
             {(STALE, 0): "R25: older", (OK, 1): "newer (not R25)"}),
        Edge("§7.2.2 R22", "the generation is adopted before the entry is found bad",
             (_e(0, w, **at_5), _e(-3, 1, anchor_pos=-2, generation=6)),
             _e(0, 0, anchor_pos=w, **at_5),
             {(STALE, 0): "R22: adopted", (OK, w): "not adopted (not R22)"}),
        Edge("§7.2.2", "first_pos < 0 is BAD_ENTRY", (), _e(-1, 1, anchor_pos=0), {(BAD, 0): ""}),
        Edge("§7.2.2", "anchor_pos != first_pos + n_rows is BAD_ENTRY", (),
             _e(0, 2, anchor_pos=3), {(BAD, 0): ""}),
        Edge("§7.2.2", "an entry that is bad leaves the window",
             (four, _e(w, 1, anchor_pos=w + 2)), _e(0, 0, anchor_pos=w), {(OK, w): ""}),
        Edge("§6.3 R15", "first_pos is ignored where n_rows is 0", (four,),
             _e(-(2**63), 0, anchor_pos=w), {(OK, w): "R15", (BAD, 0): "checked (not R15)"}),
        Edge("§7.2.3", "without rows, an anchor beyond hi + 1 is BAD_ENTRY", (four,),
             _e(0, 0, anchor_pos=w + 1), {(BAD, 0): ""}),
        Edge("§7.2.3", "without rows, the window is rolled back to the anchor", (four,),
             _e(0, 0, anchor_pos=w - 1), {(OK, w - 1): ""}),
        Edge("§7.2.3", "what was rolled back is gone", (four, _e(0, 0, anchor_pos=w - 1)),
             _e(0, 0, anchor_pos=w), {(BAD, 0): ""}),
        Edge("§7.2.3 R16", "rolled back to exactly lo",
             (_e(w, 2),), _e(0, 0, anchor_pos=w),
             {(BAD, 0): "R16", (PARTIAL, 0): "PARTIAL_WINDOW 0 (R16 names it too)"}),
        Edge("§7.2.3 R16", "rolled back below lo: never a negative number",
             (_e(w + 2, 2),), _e(0, 0, anchor_pos=w),
             {(BAD, 0): "R16", (PARTIAL, 0): "PARTIAL_WINDOW 0 (not R16)"}),
        Edge("§7.2.3 R17", "no rows, no window, anchor 0: the block alone", (),
             _e(0, 0, anchor_pos=0), {(OK, 0): "R17", (BAD, 0): "BAD_ENTRY (not R17)"}),
        Edge("§7.2.3 R17", "no rows and no window, anchor 3", (),
             _e(0, 0, anchor_pos=3), {(BAD, 0): ""}),
        Edge("§7.2.3 R18", "no rows and a negative anchor", (four,),
             _e(0, 0, anchor_pos=-1), {(BAD, 0): "R18"}),
        Edge("§7.2.3", "a gap starts a window of its own", (four,), _e(w + 3, 1),
             {(PARTIAL, 1): ""}),
        Edge("§7.2.3", "an overlap rolls back and goes on", (four,), _e(w - 2, 1),
             {(OK, w - 1): ""}),
        Edge("§7.2.3", "rows from before lo on replace the window", (_e(w, 2),), _e(0, 1),
             {(OK, 1): ""}),
        Edge("§7.2.5", "a short window with NEED_DRAFT is PARTIAL_WINDOW", (), _e(w, 2),
             {(PARTIAL, 2): ""}),
        Edge("§7.2.5 R19", "a short window without NEED_DRAFT", (), _e(w, 2, req_flags=0),
             {(OK, 2): "R19", (PARTIAL, 2): "PARTIAL_WINDOW (not R19)"}),
        Edge("§6.3 R28", "an anchor_token of vocab_size with NEED_DRAFT", (),
             _e(0, 1, anchor_token=vocab), {(BAD, 0): "R28"}),
        Edge("§6.3 R28", "an anchor_token of -1 with NEED_DRAFT", (), _e(0, 1, anchor_token=-1),
             {(BAD, 0): "R28"}),
        Edge("§6.3 R28", "an anchor_token of -1 without NEED_DRAFT is ignored", (),
             _e(0, 1, anchor_token=-1, req_flags=0),
             {(OK, 1): "R28", (BAD, 0): "BAD_ENTRY (not R28)"}),
        Edge("§7.2.5 R30", "an anchor of 2**62", (), _e(2**62, 1),
             {(BAD, 0): "R30", (PARTIAL, 1): "positions are clamped (not R30)"}),
    ]  # fmt: skip


def edges(on: Subject) -> Iterator[Finding]:
    """Each in a slot that was emptied and whose generation is forgotten: a session of its own."""
    for edge in _edges(on.hello.window, on.hello.vocab_size):
        clause = Clause(edge.clause, edge.what)
        with on.session() as talk:
            for one in edge.before:
                talk.drafted([one])
            (found,) = talk.drafted([edge.asked])
        yield _judged(clause, found, edge.allowed, edge.asked)


def _judged(clause: Clause, found: Drafted, allowed: dict[Came, str], asked: ReqEntry) -> Finding:
    came = (found.status.status, found.status.window_rows)
    if came[0] >= STALE and came[1]:
        came = (came[0], 0)  # R20 is a reading, and §6.3 was held against it already
    sent = f"rows {asked.n_rows} from {asked.first_pos}, anchor {asked.anchor_pos}"
    if came not in allowed:
        wanted = " or ".join(f"{EntryStatus(s).name} {n}" for s, n in allowed)
        return clause.judged(f"{_name(came)}; expected {wanted}", sent)
    if reading := allowed[came]:
        return clause.taken(reading, sent)
    return clause.judged("", sent, _name(came))


def _name(came: Came) -> str:
    return f"{EntryStatus(came[0]).name} {came[1]}"


def wide(on: Subject) -> Iterator[Finding]:
    """The window at its full width."""
    width = on.hello.window
    if 2 * width + 2 > on.hello.max_model_len:
        yield Clause("§7.2.3", "a full window moves on").skipped("max_model_len is too small")
        return
    with on.session() as talk:
        talk.drafted([_e(0, width)])
        for first, n in ((width, 1), (width + 1, min(6, width)), (2, width)):
            (found,) = talk.drafted([_e(first, n)])
            clause = Clause("§7.2.3 §7.2.4", "a full window moves on and stays full")
            rows = min(width, first + n)
            came = (found.status.status, found.status.window_rows)
            fault = "" if came == (OK, rows) else f"{_name(came)}; expected OK {rows}"
            yield clause.judged(fault, f"{n} rows from {first}")


def neighbours(on: Subject) -> Iterator[Finding]:
    """One entry's fault never reaches another entry (R29), nor the slot for ever."""
    if on.hello.max_slots < 2:
        yield Clause("§6.3 R29", "one entry's fault reaches no other").skipped("one slot only")
        return
    with on.session() as talk:
        good, bad = entry(0, 0, 3), entry(1, 0, 3)
        (alone,) = talk.drafted([good])
        spoilt = {
            "a bad entry": (entry(1, -1, 3, anchor_pos=2), talk.rows(good)),
            "a bad token": (entry(1, 0, 3, anchor_token=-5), talk.rows(bad)),
            "rows of NaN": (bad, NOT_A_NUMBER * (3 * talk.hello.row_bytes // 2)),
        }
        for what, (one, rows) in spoilt.items():
            for order in ((good, one), (one, good)):
                parts = {id(good): talk.rows(good), id(one): rows}
                found = talk.drafted(order, b"".join(parts[id(part)] for part in order))
                mine = found[order.index(good)]
                other = found[order.index(one)]
                clause = Clause("§6.3 R29", f"{what} beside it changes nothing of an entry")
                is_same = mine.status[:2] == (OK, 3) and near(mine, alone)
                yield clause.judged("" if is_same else f"{mine}", "both orders")
                if what == "rows of NaN":
                    yield Clause("§6.3 R29", "rows of NaN are INTERNAL with zeros").judged(
                        "" if other.status[:2] == (INTERNAL, 0) else f"{other.status}", what
                    )
        clause = Clause("§6.3 R29", "a slot drafts again when its NaN rows are gone")
        (fresh,) = talk.drafted([entry(1, 0, 3, req_flags=3)])
        is_same = fresh.status[:2] == (OK, 3) and near(fresh, alone)
        yield clause.judged("" if is_same else f"{fresh}", "NEW_GEN and good rows")


def near(one: Drafted, other: Drafted) -> bool:
    """The same drafts, with confidences that another batch shape may have rounded otherwise."""
    return one.draft_ids == other.draft_ids and all(
        abs(a - b) <= 0.02 for a, b in zip(one.confidence, other.confidence, strict=True)
    )
