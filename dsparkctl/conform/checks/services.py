"""RESET, STATS and PING (§6.4 to §6.6)."""

import json
from collections.abc import Iterator
from typing import Any, Final

from dsparkctl.conform.cases import N_KEPT, disturbed, keep
from dsparkctl.conform.finding import Clause, Finding
from dsparkctl.conform.line import Answer, NoAnswer
from dsparkctl.conform.subject import Subject, Talk, entry
from dsparkctl.contract.codes import ALL_SLOTS, EntryStatus, FrameStatus, Op
from dsparkctl.contract.messages import frame

_MOVES: Final[dict[str, tuple[int, ...]]] = {
    "steps": (2,),
    "rows": (5, 7),
    "drafted_requests": (2,),
    "partial_windows": (1,),
    "stale_generation": (1,),
    "bad_entries": (1,),
}
"""What `_events` may add to each suggested counter (§6.5); rows of skipped entries may count."""


_SLOTS_OF_EVENTS: Final = 4


def ping(on: Subject) -> Iterator[Finding]:
    with on.session() as talk:
        keep(talk)
        answer = talk.line.ask(frame(Op.PING, 3, 0xDEADBEEF))
        fault = "" if answer.status == 0 and not answer.body else str(answer)
        clause = Clause("§6.6 R1", "PING of any session is answered with an empty body")
        yield clause.judged(fault, "PING of session 0xdeadbeef")
        yield Clause("§6.6", "a PING changes no state").judged(disturbed(talk), "PING")


def reset(on: Subject) -> Iterator[Finding]:
    hello = on.hello
    last = hello.max_slots - 1
    with on.session() as talk:
        answer = _after(talk, 1)
        fault = "" if answer.status == 0 and not answer.body else str(answer)
        yield Clause("§6.4", "RESET is answered with an empty body").judged(fault, "slot_mask 1")
        yield _is_gone(talk, 0, "RESET discards the slot it names", "slot_mask 1")

        clause = Clause("§6.4", "RESET of other slots leaves a window")
        _after(talk, 0xFFFFFFFE)
        yield clause.judged(disturbed(talk), "slot_mask 0xfffffffe")
        clause = Clause("§6.4", "RESET of no slot leaves every window")
        _after(talk, 0)
        yield clause.judged(disturbed(talk), "slot_mask 0")
        talk.drafted([entry(last, 0, 2)])
        talk.reset(ALL_SLOTS)
        yield _is_gone(talk, last, "RESET of all slots discards the last one's", "0xffffffff")

        clause = Clause("§6.4 R24", "RESET and generations")
        talk.drafted([entry(0, 0, 1, generation=9)])
        talk.reset(1)
        (found,) = talk.drafted([entry(0, 0, 1, generation=8)])
        if found.status.status == EntryStatus.STALE_GENERATION:
            yield clause.taken("R24: they are kept", "generation 8 after 9")
        else:
            yield clause.taken("they are forgotten (not R24)", "generation 8 after 9")

        for body in (b"", b"\0" * 3, b"\0" * 8):
            clause = Clause("§6.4", f"a RESET of {len(body)} bytes is MALFORMED")
            answer = talk.line.ask(frame(Op.RESET, talk.next_seq(), talk.session, body))
            is_good = answer.status == FrameStatus.MALFORMED
            yield clause.judged("" if is_good else str(answer), "RESET")


def _after(talk: Talk, mask: int) -> Answer:
    """RESET of a mask while slot 0 holds its rows."""
    keep(talk)
    return talk.reset(mask)


def _is_gone(talk: Talk, slot: int, what: str, sent: str) -> Finding:
    (found,) = talk.drafted([entry(slot, 0, 0, anchor_pos=2)])
    is_gone = found.status.status == EntryStatus.BAD_ENTRY
    return Clause("§6.4", what).judged("" if is_gone else f"{found.status}", sent)


def stats(on: Subject) -> Iterator[Finding]:
    with on.session() as talk:
        keep(talk)
        before = _object(talk.stats())
        yield Clause("§6.5", "STATS is an object of UTF-8 JSON").judged(
            "" if isinstance(before, dict) else str(before), "STATS"
        )
        if not isinstance(before, dict):
            return
        missing = [key for key in (*_MOVES, "session", "uptime_s") if key not in before]
        clause = Clause("§6.5 R35", "the suggested keys")
        if missing:
            yield clause.taken(f"without {', '.join(missing)}", "STATS")
        else:
            yield clause.judged("", "STATS")
        yield Clause("§6.5", "STATS changes no state").judged(disturbed(talk), "STATS")
        if on.hello.max_slots < _SLOTS_OF_EVENTS:
            yield Clause("§6.5 R35", "counters move").skipped("too few slots")
            return
        before = _object(talk.stats())
        _events(talk)
        after = _object(talk.stats())
        if not isinstance(before, dict) or not isinstance(after, dict):
            raise NoAnswer("STATS answers no object any more")
        for key, allowed in _MOVES.items():
            if key in before:
                moved = _number(after.get(key)) - _number(before.get(key))
                clause = Clause("§6.5 R35", f"{key} moves by one an event")
                fault = "" if moved in allowed else f"by {moved:g} for {allowed[0]}"
                yield clause.judged(fault, "two STEPs")
        if "session" in after:
            said = after["session"]
            is_ours = said in (talk.session, f"{talk.session:08x}", str(talk.session))
            yield Clause("§6.5", "session is ours").judged("" if is_ours else f"{said}", "STATS")


def _events(talk: Talk) -> None:
    """Two STEPs: two appends, then two drafts, one of a short window, and a fault of each kind."""
    w = min(N_KEPT, talk.hello.window)
    talk.drafted([entry(0, w, 1, req_flags=0), entry(3, 0, 1, req_flags=0, generation=9)])
    talk.drafted([
        entry(0, w + 1, 1),
        entry(1, w, 2, generation=3),
        entry(2, 0, 1, anchor_pos=7),
        entry(3, 0, 1, generation=8),
    ])  # fmt: skip


def _object(answer: Answer) -> Any:
    if answer.status:
        return str(answer)
    try:
        return json.loads(answer.body)
    except ValueError as error:
        return f"no JSON: {error}"


def _number(value: Any) -> float:
    return value if isinstance(value, (int, float)) else float("nan")
