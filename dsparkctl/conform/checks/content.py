"""What drafts depend on (§7.2): on the W rows before the anchor and on the anchor, on nothing else.

Decides by sending the same window twice with something else around it. Which drafts come is the
model's business.
"""

from collections.abc import Iterator

from dsparkctl.conform.checks.entries import near
from dsparkctl.conform.finding import Clause, Finding
from dsparkctl.conform.rows import block
from dsparkctl.conform.subject import Drafted, Subject, Talk, entry
from dsparkctl.contract.codes import NEED_DRAFT, NEW_GEN

FRESH = NEED_DRAFT | NEW_GEN
_TRIES = 8


def _draft(talk: Talk, first: int, names: list[str], token: int = 1, flags: int = FRESH) -> Drafted:
    """One append of rows by their names, and its draft."""
    rows = b"".join(
        block(name, range(first + i, first + i + 1), talk.hello.row_bytes)
        for i, name in enumerate(names)
    )
    one = entry(0, first, len(names), anchor_token=token, req_flags=flags)
    (found,) = talk.drafted([one], rows)
    return found


def repeats(on: Subject) -> Iterator[Finding]:
    with on.session() as talk:
        clause = Clause("§7.2", "the same window drafts the same twice")
        first, again = (_draft(talk, 0, ["a"] * 3) for _ in range(2))
        yield clause.judged("" if near(first, again) else f"{again}", "the same rows")

        clause = Clause("§7.2.6", "draft rows and draft tokens are never inserted into the window")
        (later,) = talk.drafted([entry(0, 0, 0, anchor_pos=3)])
        yield clause.judged("" if near(later, first) else f"{later}", "the window once more")

        clause = Clause("§7.2.3", "rows that were rolled back leave no trace")
        _draft(talk, 0, ["a", "a", "a", "b", "b"])
        back = _draft(talk, 2, ["a"], flags=NEED_DRAFT)
        yield clause.judged("" if near(back, first) else f"{back}", "other rows from 2 on")

        clause = Clause("§7.2.3", "a window grown row by row is the window sent at once")
        _draft(talk, 0, ["a"])
        _draft(talk, 1, ["a"], flags=0)
        grown = _draft(talk, 2, ["a"], flags=NEED_DRAFT)
        yield clause.judged("" if near(grown, first) else f"{grown}", "three STEPs")


def outside(on: Subject) -> Iterator[Finding]:
    """Rows before the window, and rows of other slots."""
    width = on.hello.window
    if 2 * width > on.hello.max_model_len:
        return
    with on.session() as talk:
        clause = Clause("§4.3 §7.2", "a row outside the window changes nothing")
        drafts = []
        for name in ("left", "other"):
            _draft(talk, 0, [name] * width, flags=NEW_GEN)
            drafts.append(_draft(talk, width, ["in"] * width, flags=NEED_DRAFT))
        yield clause.judged("" if near(*drafts) else f"{drafts}", "two histories")

        clause = Clause("§4.3", "the window's oldest row still counts: W rows, not W - 1")
        oldest = [["x"] + ["in"] * (width - 1), ["y"] + ["in"] * (width - 1)]
        seen = {_values(_draft(talk, width, names)) for names in oldest}
        if len(seen) > 1:
            yield clause.judged("", "another oldest row")
        else:
            yield clause.taken("its drafts and confidences did not show it", "another oldest row")

        if on.hello.max_slots > 1:
            clause = Clause("§7.1", "another slot's rows change nothing")
            alone = _draft(talk, 0, ["a"] * 3)
            talk.drafted([entry(1, 0, 3, req_flags=FRESH)])
            (after,) = talk.drafted([entry(0, 0, 0, anchor_pos=3)])
            yield clause.judged("" if near(after, alone) else f"{after}", "rows in slot 1")


def inside(on: Subject) -> Iterator[Finding]:
    """A worker that drafts the same whatever it is sent is no drafter."""
    with on.session() as talk:
        for what, drafts in (
            ("rows", {_values(_draft(talk, 0, [f"r{i}"] * 3)) for i in range(_TRIES)}),
            ("anchor token", {_values(_draft(talk, 0, ["a"] * 3, token=i)) for i in range(_TRIES)}),
        ):
            clause = Clause("§7.2.5", f"drafts depend on the {what}")
            if len(drafts) > 1:
                yield clause.judged("", f"{_TRIES} different ones", f"{len(drafts)} drafts")
            else:
                yield clause.judged("all drafts are the same", f"{_TRIES} different ones")


def _values(found: Drafted) -> tuple[object, ...]:
    return (*found.draft_ids, *found.confidence)
