"""The body of a STEP (§6.3): sizes that contradict each other, limits, and what is ignored."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from dsparkctl.conform.cases import IGNORED, MALFORMED, Case, Outcome, play
from dsparkctl.conform.finding import Clause, Finding
from dsparkctl.conform.line import Kind, NoAnswer
from dsparkctl.conform.rows import block
from dsparkctl.conform.subject import Subject, Talk, entry, has_margin
from dsparkctl.contract.codes import CAN_MARGIN, WANT_MARGIN, FrameStatus, Op
from dsparkctl.contract.framing import HEADER_BYTES, MAX_MESSAGE_BYTES
from dsparkctl.contract.layout import pack
from dsparkctl.contract.messages import frame, rows_offset
from dsparkctl.contract.records import ReqEntry, StepHeader

CAPACITY: Final[dict[Outcome, str]] = {
    FrameStatus.CAPACITY: "R11",
    FrameStatus.MALFORMED: "MALFORMED (not R11)",
}
CONTRADICTS: Final[dict[Outcome, str]] = {
    FrameStatus.MALFORMED: "R12",
    FrameStatus.OK: "the entry is BAD_ENTRY (not R12)",
}


def step(
    talk: Talk,
    entries: Sequence[ReqEntry],
    *,
    padding: int | None = None,
    tail: bytes = b"",
    **of: Any,
) -> bytes:
    """A STEP whose header says what `of` says, whatever its entries hold."""
    talk.step_id += 1
    n_rows = sum(one.n_rows for one in entries)
    start = rows_offset(len(entries))
    given = {
        "step_id": talk.step_id,
        "n_req": len(entries),
        "step_flags": 0,
        "n_rows": n_rows,
        "row_bytes": talk.hello.row_bytes,
        "rows_offset": start,
        "reserved": (0, 0),
    }
    body = pack(StepHeader(**{**given, **of})) + b"".join(map(pack, entries))
    body += bytes(start - len(body) if padding is None else padding)
    body += b"".join(talk.rows(one) for one in entries) + tail
    return frame(Op.STEP, talk.next_seq(), talk.session, body)


def _on(slot: int, n_rows: int = 1, **of: Any) -> ReqEntry:
    """An entry of another slot than the one that is kept."""
    return entry(slot, 0, n_rows, **of)


def _many(talk: Talk) -> list[ReqEntry]:
    return [_on(slot % 256, 0, anchor_pos=0) for slot in range(talk.hello.max_slots + 1)]


def _too_many_rows(talk: Talk) -> bytes:
    hello = talk.hello
    over = hello.max_rows_per_step + 1
    return step(talk, [entry(1 % hello.max_slots, 0, over)])


def _fits(talk: Talk) -> bool:
    over = (talk.hello.max_rows_per_step + 1) * talk.hello.row_bytes
    return HEADER_BYTES + rows_offset(1) + over <= MAX_MESSAGE_BYTES


def _two_slots(talk: Talk) -> bool:
    return talk.hello.max_slots > 1


CASES: Final = [
    Case("§6.3", "a body shorter than a StepHeader is MALFORMED",
         lambda t: frame(Op.STEP, t.next_seq(), t.session, bytes(31)), MALFORMED),
    Case("§6.3", "an empty body is MALFORMED",
         lambda t: frame(Op.STEP, t.next_seq(), t.session), MALFORMED),
    Case("§6.3 R11", "n_req 0", lambda t: step(t, []), {FrameStatus.MALFORMED: "R11"}),
    Case("§6.3", "n_req says two where one entry fits is MALFORMED",
         lambda t: step(t, [_on(0, 0, anchor_pos=0)], n_req=2, padding=0), MALFORMED),
    Case("§6.3", "n_req says 65535 is refused", lambda t: step(t, [_on(0)], n_req=0xFFFF),
         {FrameStatus.MALFORMED: "", FrameStatus.CAPACITY: ""}),
    Case("§6.3 R11", "more entries than max_slots", lambda t: step(t, _many(t)), CAPACITY),
    Case("§6.3 R11", "more rows than max_rows_per_step", _too_many_rows,
         {**CAPACITY, FrameStatus.OK: "the entry is BAD_ENTRY: more rows than W"}, _fits),
    Case("§6.3 R10", "a slot twice", lambda t: step(t, [_on(0), _on(0)]),
         {FrameStatus.MALFORMED: "R10"}, _two_slots),
    Case("§6.3 R10", "a slot that is max_slots", lambda t: step(t, [_on(t.hello.max_slots % 256)]),
         {FrameStatus.MALFORMED: "R10", FrameStatus.OK: "BAD_ENTRY (not R10)",
          FrameStatus.CAPACITY: "CAPACITY (not R10)"}),
    Case("§6.3 R10", "slot 255", lambda t: step(t, [_on(255)]),
         {FrameStatus.MALFORMED: "R10", FrameStatus.OK: "BAD_ENTRY (not R10)",
          FrameStatus.CAPACITY: "CAPACITY (not R10)"},
         lambda t: t.hello.max_slots < 255),
    Case("§6.3 R12", "n_rows says one more than the entries hold",
         lambda t: step(t, [_on(1, 2)], n_rows=3, tail=bytes(t.hello.row_bytes)), CONTRADICTS,
         _two_slots),
    Case("§6.3 R12", "n_rows says one less than the entries hold",
         lambda t: step(t, [_on(1, 2)], n_rows=1), CONTRADICTS, _two_slots),
    Case("§6.3 R13", "bytes behind the row block",
         lambda t: step(t, [_on(1)], tail=b"\0"), {FrameStatus.MALFORMED: "R13"}, _two_slots),
    Case("§6.3", "a row block that ends one byte early is MALFORMED",
         lambda t: _cut(step(t, [_on(1)])), MALFORMED, _two_slots),
    Case("§6.3", "row_bytes another than HELLO's is MALFORMED",
         lambda t: step(t, [_on(1)], row_bytes=t.hello.row_bytes - 2), MALFORMED, _two_slots),
    Case("§6.3", "a rows_offset that is no multiple of 64 is MALFORMED",
         lambda t: step(t, [_on(1)], rows_offset=rows_offset(1) + 4), MALFORMED, _two_slots),
    Case("§6.3", "a rows_offset inside the entries is MALFORMED",
         lambda t: step(t, [_on(1)], rows_offset=0), MALFORMED, _two_slots),
    Case("§6.3", "a rows_offset of 2**32 - 64 is MALFORMED",
         lambda t: step(t, [_on(1)], rows_offset=2**32 - 64), MALFORMED, _two_slots),
    Case("§6.3 R14", "without rows, rows_offset 0, row_bytes 0 and no padding are fine",
         lambda t: step(t, [_on(1, 0, anchor_pos=0)], rows_offset=0, row_bytes=0, padding=0),
         {FrameStatus.OK: "R14", FrameStatus.MALFORMED: "they are checked (not R14)"}, _two_slots),
    Case("§6.3 R27", "unknown step_flags and reserved words are ignored",
         lambda t: step(t, [_on(1)], step_flags=0xFFFE, reserved=(7, 2**32 - 1)), IGNORED,
         _two_slots),
    Case("§6.3 R27", "unknown req_flags are ignored",
         lambda t: step(t, [_on(1, req_flags=0xF8 | 2)]), IGNORED, _two_slots),
    Case("§6.3", "k_window is informative: 255 is fine",
         lambda t: step(t, [_on(1, k_window=255)]), IGNORED, _two_slots),
]  # fmt: skip


def _cut(message: bytes) -> bytes:
    """A byte less, and a header that says so."""
    body = message[HEADER_BYTES:-1]
    return message[:20] + len(body).to_bytes(4, "little") + message[24:HEADER_BYTES] + body


def contradictions(on: Subject) -> Iterator[Finding]:
    """Each in a session that holds a window: none of them may touch it."""
    rest = list(CASES)
    while rest:
        with on.session() as talk:
            done = list(play(talk, rest))
        yield from done
        n_done = sum(not one.clause.endswith("§9.1") for one in done)
        if n_done == 0:
            return
        rest = rest[n_done:]


def echoes(on: Subject) -> Iterator[Finding]:
    """What a reply must repeat (§6.3), and that what is asked for is what comes."""
    with on.session() as talk:
        for step_id in (0, 1, 2**63, 2**64 - 1):
            clause = Clause("§6.3", "a reply echoes step_id, n_req and each generation")
            entries = [
                _on(slot, generation=5 + slot) for slot in range(min(2, talk.hello.max_slots))
            ]
            answer = talk.step(entries, step_id=step_id)
            yield clause.judged(_fault(talk, entries, answer, step_id), f"step_id {step_id}")


def n_out(on: Subject) -> Iterator[Finding]:
    """§6.3 v1.3: positions below n_out as in a full block, zeros from there on."""
    n = on.hello.num_spec
    with on.session() as talk:
        entries = [entry(0, 0, 3)]
        (full,) = talk.drafted(entries)
        for count in (*range(1, n + 1), n + 1, 255):
            reading = "§6.3 R26" if count > n else "§6.3"
            clause = Clause(reading, f"n_out {count}: the same drafts, then zeros")
            (part,) = talk.drafted([entry(0, 0, 3, n_out=count)])
            k = min(count, n)
            same = part.draft_ids[:k] == full.draft_ids[:k]
            same = same and part.confidence[:k] == full.confidence[:k]
            fault = "" if same else f"{part.draft_ids} for {full.draft_ids}"
            yield clause.judged(fault, f"n_out {count}")
        clause = Clause("§6.3", "without NEED_DRAFT drafts and confidences are zero")
        (none,) = talk.drafted([entry(0, 3, 1, req_flags=0)])
        fault = "" if not any(none.draft_ids) else f"{none.draft_ids}"
        yield clause.judged(fault, "append only")


def margins(on: Subject) -> Iterator[Finding]:
    """R31."""
    with on.session() as talk:
        entries = [entry(0, 0, 2)]
        plain = talk.judged(entries, talk.step(entries))
        yield Clause("§6.3 R31", "no margins come unasked").judged(
            "HAS_MARGIN is set" if has_margin(plain) else "", "STEP without WANT_MARGIN"
        )
        asked = talk.judged(entries, talk.step(entries, flags=WANT_MARGIN))
        can = bool(talk.capabilities & CAN_MARGIN)
        clause = Clause("§6.3 R31", "margins come exactly where the capability says so")
        fault = "" if has_margin(asked) is can else f"capability {can}, margins {has_margin(asked)}"
        yield clause.judged(fault, "STEP with WANT_MARGIN")
        clause = Clause("§6.3", "margins change no draft")
        same = asked.draft_ids == plain.draft_ids
        yield clause.judged("" if same else f"{asked.draft_ids}", "STEP with WANT_MARGIN")


def widest(on: Subject) -> Iterator[Finding]:
    """The largest STEP that HELLO allows: every slot's whole window."""
    hello = on.hello
    clause = Clause("§6.3 §8.1", "a STEP of max_slots whole windows is served")
    n_slots = min(hello.max_slots, hello.max_rows_per_step // hello.window)
    entries = [entry(slot, 0, hello.window, req_flags=7) for slot in range(n_slots)]
    n_bytes = HEADER_BYTES + rows_offset(n_slots) + n_slots * hello.window * hello.row_bytes
    if not entries or n_bytes > MAX_MESSAGE_BYTES or hello.window > hello.max_model_len:
        yield clause.skipped("these terms do not allow it to be sent")
        return
    with on.session() as talk:
        rows = block("", range(hello.window), hello.row_bytes) * n_slots
        found = talk.drafted(entries, rows)
        bad = [one.status for one in found if one.status[:2] != (0, hello.window)]
        yield clause.judged(f"{bad[0]}" if bad else "", f"{n_bytes} bytes")
        clause = Clause("§7.2", "equal windows in every slot give equal drafts")
        ids = {one.draft_ids for one in found}
        yield clause.judged(
            "" if len(ids) == 1 else f"{len(ids)} different drafts", "the same rows"
        )


def _fault(talk: Talk, entries: Sequence[ReqEntry], answer: Any, step_id: int) -> str:
    if answer.kind is not Kind.REPLY:
        return str(answer)
    try:
        talk.judged(entries, answer, step_id)
    except NoAnswer as error:
        return str(error)
    return ""
