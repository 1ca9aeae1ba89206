"""Every check must bite (issue 6, part 1): a worker with one planted defect, and the part of the
suite that has to find it. A worker without one passes all of it."""

import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import dspark_worker.desk as desk_room
import dspark_worker.rounds as rounds_room
from dspark_worker.drafter import Draft
from dsparkctl.conform.finding import Finding, Level
from dsparkctl.conform.line import NoAnswer
from dsparkctl.conform.report import counts
from dsparkctl.conform.suite import examine, parts
from dsparkctl.contract.codes import NEW_GEN, EntryStatus, FrameStatus, Op
from dsparkctl.contract.messages import frame, parse_step
from dsparkctl.contract.records import ReqEntry
from dsparkctl.state.session import ACCEPTED, Verdict, judge_frame, judge_hello, opened
from dsparkctl.state.window import EMPTY, Bounds, Outcome, Slot, Window, apply_entry
from tests.unit.conform.defective import HELLO, Silent, Worker, defective_worker

N, ENTRIES = HELLO.num_spec, 32 + 32
"""Drafts an entry; where the statuses of a STEP's reply begin."""


@pytest.fixture
def worker() -> Iterator[Worker]:
    with defective_worker() as found:
        yield found


def test_a_good_worker_has_nothing_that_fails(worker: Worker) -> None:
    findings = list(examine(worker.subject(5.0), n_rounds=600, n_fuzz=300))
    bad = [one for one in findings if one.level in (Level.FAIL, Level.SKIP)]
    assert bad == []
    assert counts(findings)[Level.INFO] >= 30
    assert counts(findings)[Level.PASS] >= 150


# --- defects of replies ---------------------------------------------------------------------------


def op_of(message: bytes) -> int:
    return int.from_bytes(message[6:8], "little")


def patched(reply: bytes, at: int, form: str, *values: Any) -> bytes:
    data = struct.pack("<" + form, *values)
    return reply[:at] + data + reply[at + len(data) :]


def of(op: Op, change: Callable[[bytes, bytes], bytes]) -> Callable[[bytes, bytes], bytes]:
    """A change of good replies to one operation."""

    def spoil(message: bytes, reply: bytes) -> bytes:
        is_good = op_of(message) == op and reply[24:28] == bytes(4)
        return change(message, reply) if is_good else reply

    return spoil


def every(change: Callable[[bytes], bytes]) -> Callable[[bytes, bytes], bytes]:
    return lambda _message, reply: change(reply)


def n_req(reply: bytes) -> int:
    return int.from_bytes(reply[40:42], "little")


def ids_at(reply: bytes) -> int:
    return ENTRIES + 8 * n_req(reply)


def confidences_at(reply: bytes) -> int:
    return ids_at(reply) + 4 * N * n_req(reply)


def status(value: int, *, when: int | None = None) -> Callable[[bytes, bytes], bytes]:
    """The first entry's status, where it was `when`."""

    def change(_message: bytes, reply: bytes) -> bytes:
        (now,) = struct.unpack_from("<H", reply, ENTRIES)
        return reply if when is not None and now != when else patched(reply, ENTRIES, "H", value)

    return of(Op.STEP, change)


def silent(op: Op) -> Callable[[bytes, bytes], bytes]:
    def spoil(message: bytes, reply: bytes) -> bytes:
        if op_of(message) == op:
            raise Silent
        return reply

    return spoil


def drops_errors(_message: bytes, reply: bytes) -> bytes:
    if reply[24:28] != bytes(4):
        raise ConnectionResetError
    return reply


def told_late(_message: bytes, reply: bytes) -> bytes:
    if reply[24:28] != bytes(4) and reply[6] == Op.STEP:
        return reply[:24] + bytes(4) + reply[28:]
    return reply


REPLIES: dict[str, tuple[str, Callable[[bytes, bytes], bytes]]] = {
    "seq is not echoed": ("echoes", every(lambda r: patched(r, 8, "Q", 7))),
    "session is not echoed": ("echoes", every(lambda r: patched(r, 16, "I", 7))),
    "version 2 comes back": ("echoes", every(lambda r: patched(r, 4, "H", 2))),
    "another op comes back": ("echoes", every(lambda r: patched(r, 6, "H", 9))),
    "flags of a status": ("echoes", every(lambda r: patched(r, 24, "i", 5))),
    "body_len lies": ("echoes", every(lambda r: patched(r, 20, "I", 1))),
    "a byte behind every reply": (
        "messages in pieces", lambda m, r: r if op_of(m) != Op.PING else r + b"\0",
    ),
    "HELLO names another window": (
        "HELLO's reply", of(Op.HELLO, lambda _m, r: patched(r, 32 + 16, "I", 9))),
    "HELLO names another N": (
        "HELLO's reply", of(Op.HELLO, lambda _m, r: patched(r, 32 + 20, "I", 9))),
    "HELLO names no identity": (
        "HELLO's reply", of(Op.HELLO, lambda _m, r: patched(r, 32 + 24, "32s", bytes(32)))),
    "HELLO has no capability": (
        "HELLO's reply", of(Op.HELLO, lambda _m, r: patched(r, 32 + 12, "I", 0))),
    "HELLO's reply is a byte short": (
        "HELLO's reply",
        of(Op.HELLO, lambda _m, r: patched(r[:-1], 20, "I", len(r) - 33))),
    "step_id is not echoed": (
        "a reply's echoes", of(Op.STEP, lambda _m, r: patched(r, 32, "Q", 1))),
    "num_spec of the reply is 4": (
        "a reply's echoes", of(Op.STEP, lambda _m, r: patched(r, 42, "H", 4))),
    "a generation is not echoed": (
        "a reply's echoes", of(Op.STEP, lambda _m, r: patched(r, ENTRIES + 4, "I", 0))),
    "draft ids out of the vocabulary": (
        "drafts repeat", of(Op.STEP, lambda _m, r: patched(r, ids_at(r), "i", HELLO.vocab_size))),
    "negative draft ids": (
        "drafts repeat", of(Op.STEP, lambda _m, r: patched(r, ids_at(r), "i", -1))),
    "a confidence that is NaN": (
        "drafts repeat",
        of(Op.STEP, lambda _m, r: patched(r, confidences_at(r), "f", float("nan")))),
    "a confidence of 1.5": (
        "drafts repeat", of(Op.STEP, lambda _m, r: patched(r, confidences_at(r), "f", 1.5))),
    "drafts behind n_out": (
        "n_out", of(Op.STEP, lambda _m, r: patched(r, ids_at(r) + 4 * (N - 1), "i", 3))),
    "a status that is no code": ("random steps", status(9)),
    "PARTIAL_WINDOW for a full one": ("random steps", status(1, when=0)),
    "OK for a short window": ("entries, edge by edge", status(0, when=1)),
    "BAD_ENTRY told as STALE_GENERATION": ("entries, edge by edge", status(2, when=3)),
    "window_rows one too many": (
        "entries, edge by edge",
        of(Op.STEP, lambda _m, r: patched(
            r, ENTRIES + 2, "H", int.from_bytes(r[ENTRIES + 2 : ENTRIES + 4], "little") + 1))),
    "no answer to PING": ("PING", silent(Op.PING)),
    "no answer to RESET": ("RESET", silent(Op.RESET)),
    "no answer to STATS": ("STATS", silent(Op.STATS)),
    "STATS is no JSON": (
        "STATS", of(Op.STATS, lambda m, _r: frame(Op.STATS, m[8], 0, b"steps: 3"))),
    "errors end the connection": ("STEPs that contradict themselves", drops_errors),
    "errors are told as OK": ("STEPs that contradict themselves", told_late),
}  # fmt: skip


def found_by(worker: Worker, name: str, n_rounds: int = 300) -> list[Finding]:
    """What one part says of a worker."""
    (part,) = (one for one in parts(n_rounds, 60) if one.name == name)
    findings: list[Finding] = []
    try:
        findings.extend(part.check(worker.subject()))
    except NoAnswer as error:
        findings.append(Finding(Level.FAIL, part.clause, part.name, "", str(error)))
    return findings


def failed(findings: list[Finding]) -> list[Finding]:
    return [one for one in findings if one.level is Level.FAIL]


@pytest.mark.parametrize("defect", REPLIES)
def test_a_reply_that_is_wrong_is_found(worker: Worker, defect: str) -> None:
    name, worker.spoil = REPLIES[defect]
    assert failed(found_by(worker, name)), defect


# --- defects of rules -----------------------------------------------------------------------------

Plant = Callable[[Worker, pytest.MonkeyPatch], None]


def entry_rule(change: Callable[[Slot, ReqEntry, Bounds], Outcome]) -> Plant:
    """Another window rule."""
    return lambda _worker, patch: patch.setattr(rounds_room, "apply_entry", change)


def frame_rule(change: Callable[..., Verdict]) -> Plant:
    return lambda _worker, patch: patch.setattr(desk_room, "judge_frame", change)


def hello_rule(change: Callable[..., Verdict]) -> Plant:
    return lambda _worker, patch: patch.setattr(desk_room, "judge_hello", change)


def _ignoring(name: str) -> Plant:
    """A field of HELLO that is not compared."""
    return hello_rule(
        lambda hello, session, own: judge_hello(
            hello._replace(**{name: getattr(own, name)}), session, own
        )
    )


def _never_stale(slot: Slot, one: ReqEntry, bounds: Bounds) -> Outcome:
    return apply_entry(Slot(None, slot.window), one, bounds)


def _plain_order(slot: Slot, one: ReqEntry, bounds: Bounds) -> Outcome:
    """Generations compared as plain numbers."""
    if slot.generation is not None and one.generation < slot.generation:
        return Outcome(slot, EntryStatus.STALE_GENERATION, 0, "older")
    known = slot if one.generation == slot.generation else Slot(None, EMPTY)
    return apply_entry(known, one, bounds)


def _new_gen_is_king(slot: Slot, one: ReqEntry, bounds: Bounds) -> Outcome:
    return apply_entry(Slot(None, EMPTY) if one.req_flags & NEW_GEN else slot, one, bounds)


def _keeps_on_new_gen(slot: Slot, one: ReqEntry, bounds: Bounds) -> Outcome:
    return apply_entry(slot, one._replace(req_flags=one.req_flags & ~NEW_GEN), bounds)


def _no_gap(slot: Slot, one: ReqEntry, bounds: Bounds) -> Outcome:
    """A gap is taken for an overlap."""
    outcome = apply_entry(slot, one, bounds)
    lo, hi = slot.window
    if one.n_rows and hi >= lo and one.first_pos > hi + 1 and outcome.status <= 1:
        window = Window(max(lo, outcome.slot.window.hi - bounds.width + 1), outcome.slot.window.hi)
        return outcome._replace(slot=outcome.slot._replace(window=window))
    return outcome


def _no_rollback(slot: Slot, one: ReqEntry, bounds: Bounds) -> Outcome:
    """Without rows the window is left as it is."""
    outcome = apply_entry(slot, one, bounds)
    if not one.n_rows and outcome.status <= 1:
        return outcome._replace(slot=slot)
    return outcome


def _one_row_less(slot: Slot, one: ReqEntry, bounds: Bounds) -> Outcome:
    """A causal window: W - 1 rows."""
    return apply_entry(slot, one, bounds._replace(width=bounds.width - 1))


def _wraps_below_zero(slot: Slot, one: ReqEntry, bounds: Bounds) -> Outcome:
    outcome = apply_entry(slot, one, bounds)
    rolled = not one.n_rows and 0 < one.anchor_pos <= slot.window.lo
    return outcome._replace(window_rows=0xFFFF) if rolled else outcome


def _stale_empties(slot: Slot, one: ReqEntry, bounds: Bounds) -> Outcome:
    outcome = apply_entry(slot, one, bounds)
    if outcome.status == EntryStatus.STALE_GENERATION:
        return outcome._replace(slot=slot._replace(window=EMPTY))
    return outcome


def _bad_empties(slot: Slot, one: ReqEntry, bounds: Bounds) -> Outcome:
    outcome = apply_entry(slot, one, bounds)
    if outcome.status == EntryStatus.BAD_ENTRY:
        return outcome._replace(slot=outcome.slot._replace(window=EMPTY))
    return outcome


def _any_seq(worker: Worker, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        desk_room, "judge_frame", lambda s, b, i, seq: judge_frame(s, b, i, max(seq, 2**63))
    )


def _session_by_id(session: Any, _bound: bool, session_id: int, seq: int) -> Verdict:
    """A known session needs no HELLO on a new connection."""
    return judge_frame(session, True, session_id, seq)


def _any_session(session: Any, bound: bool, _id: int, seq: int) -> Verdict:
    return judge_frame(session, bound, session.id if session else 0, seq)


def _lowers_last(worker: Worker, patch: pytest.MonkeyPatch) -> None:
    def reopened(session: Any, session_id: int, hello: Any) -> Any:
        found, is_new = opened(session, session_id, hello)
        return found._replace(last_seq=0), is_new

    patch.setattr(desk_room, "opened", reopened)


def _keeps_windows(worker: Worker, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(worker.desk._rounds, "begin_session", lambda: None)


def _drops_on_refusal(worker: Worker, patch: pytest.MonkeyPatch) -> None:
    def judged(hello: Any, session: int, own: Any) -> Verdict:
        verdict = judge_hello(hello, session, own)
        if verdict.status:
            worker.desk._rounds.begin_session()
        return verdict

    patch.setattr(desk_room, "judge_hello", judged)


def _ping_records(worker: Worker, patch: pytest.MonkeyPatch) -> None:
    def hear(message: bytes) -> bytes:
        if op_of(message) == Op.PING and worker.desk._session is not None:
            seq = max(worker.desk._session.last_seq, int.from_bytes(message[8:16], "little"))
            worker.desk._session = worker.desk._session._replace(last_seq=seq)
        return message

    worker.hear = hear


def _reset(change: Callable[[int], int]) -> Plant:
    def plant(worker: Worker, patch: pytest.MonkeyPatch) -> None:
        real = worker.desk._rounds.reset
        patch.setattr(worker.desk._rounds, "reset", lambda mask: real(change(mask)))

    return plant


def _drafts(change: Callable[[Worker, list[Any], Any], None]) -> Plant:
    """What the drafter says, changed in place."""

    def plant(worker: Worker, patch: pytest.MonkeyPatch) -> None:
        real = worker.drafter.draft

        def draft(requests: Any, *, max_model_len: int, want_margin: bool) -> Any:
            found = real(requests, max_model_len=max_model_len, want_margin=want_margin)
            change(worker, found, requests)
            return found

        patch.setattr(worker.drafter, "draft", draft)

    return plant


def _constant(_worker: Worker, found: list[Any], requests: Any) -> None:
    for i, request in enumerate(requests):
        n = request.n_out
        shares = [0.5] * n + [0.0] * (N - n)
        found[i] = Draft([1] * n + [0] * (N - n), shares, shares)


def _counting(worker: Worker, found: list[Any], requests: Any) -> None:
    """Drafts that know how many there were before: something was kept of them."""
    worker.drafter._folds[0][0] += 1


def _blind_to_anchor(worker: Worker, patch: pytest.MonkeyPatch) -> None:
    real = worker.drafter._draft
    patch.setattr(
        worker.drafter, "_draft", lambda one, limit: real(one._replace(anchor_token=1), limit)
    )


def _crosstalk(worker: Worker, patch: pytest.MonkeyPatch) -> None:
    """Every slot's rows lie in one place."""
    patch.setattr(worker.drafter, "_folds", [worker.drafter._folds[0]] * 5)


def _too_far_back(worker: Worker, patch: pytest.MonkeyPatch) -> None:
    """The draft sees what lay before the window."""
    real = worker.drafter.append
    history: list[int] = []

    def append(parts: Any) -> Any:
        for part in parts:
            history.extend(bytes(part.rows)[:4])
        return real(parts)

    real_draft = worker.drafter._draft
    patch.setattr(worker.drafter, "append", append)
    patch.setattr(
        worker.drafter, "_draft",
        lambda one, limit: real_draft(one._replace(anchor_token=sum(history)), limit),
    )  # fmt: skip


def _nan_spreads(worker: Worker, patch: pytest.MonkeyPatch) -> None:
    """One entry's INTERNAL is every entry's."""

    def change(_message: bytes, reply: bytes) -> bytes:
        n = n_req(reply)
        statuses = [int.from_bytes(reply[ENTRIES + 8 * i :][:2], "little") for i in range(n)]
        if EntryStatus.INTERNAL not in statuses:
            return reply
        for i in range(n):
            reply = patched(reply, ENTRIES + 8 * i, "HH", EntryStatus.INTERNAL, 0)
        return reply[: ids_at(reply)] + bytes(len(reply) - ids_at(reply))

    worker.spoil = of(Op.STEP, change)


def _nan_stays(worker: Worker, patch: pytest.MonkeyPatch) -> None:
    """A slot that once held NaN never drafts again."""

    class Sticky(list[bool]):
        def __setitem__(self, at: Any, value: Any) -> None:
            super().__setitem__(at, value or self[at])

    patch.setattr(worker.drafter, "_spoilt", [Sticky([False] * HELLO.window) for _ in range(5)])


def _more_slots(worker: Worker, patch: pytest.MonkeyPatch) -> None:
    """A slot twice is applied twice."""
    real = parse_step

    def parse(body: memoryview, limits: Any) -> Any:
        data = bytearray(body)
        if len(data) >= 96 and data[8] == 2 and data[32] == data[64]:
            data[64] = (data[64] + 1) % 4
        return real(memoryview(bytes(data)), limits)

    patch.setattr(desk_room, "parse_step", parse)


def _counts_twice(worker: Worker, patch: pytest.MonkeyPatch) -> None:
    real = worker.desk.stats.stepped

    def stepped(entries: Any, statuses: Any, now: float) -> None:
        real(entries, statuses, now)
        real(entries, statuses, now)

    patch.setattr(worker.desk.stats, "stepped", stepped)


def _unversioned(worker: Worker, patch: pytest.MonkeyPatch) -> None:
    worker.hear = lambda message: message[:4] + b"\1\0" + message[6:]


def _swallows_second(worker: Worker, patch: pytest.MonkeyPatch) -> None:
    def spoil(message: bytes, reply: bytes) -> bytes:
        if op_of(message) == Op.PING and message[8] == 9:
            raise Silent
        return reply

    worker.spoil = spoil


def _set(name: str, value: bool) -> Plant:
    return lambda worker, _patch: setattr(worker, name, value)


RULES: dict[str, tuple[str, Plant]] = {
    "num_spec is not compared": ("HELLO, field by field", _ignoring("num_spec")),
    "tap ids are not compared": ("HELLO, field by field", _ignoring("tap_layer_ids")),
    "row_bytes is not compared": ("HELLO, field by field", _ignoring("row_bytes")),
    "the noise token is not compared": ("HELLO, field by field", _ignoring("noise_token_id")),
    "sample_mode is not compared": ("HELLO, field by field", _ignoring("sample_mode")),
    "payload_kind is not compared": ("HELLO, field by field", _ignoring("payload_kind")),
    "drafter_identity is not compared": ("HELLO, field by field", _ignoring("drafter_identity")),
    "markov_identity is not compared": ("HELLO, field by field", _ignoring("markov_identity")),
    "any HELLO is accepted": ("HELLO of noise", hello_rule(lambda *_: ACCEPTED)),
    "session 0 is accepted": (
        "HELLO's size", hello_rule(lambda h, s, own: judge_hello(h, s or 1, own))),
    "a refused HELLO drops the windows": ("HELLO, field by field", _drops_on_refusal),
    "the version is not looked at": ("headers", _unversioned),
    "a second message of a segment is lost": ("messages in pieces", _swallows_second),
    "seq is not checked": ("sequence numbers", _any_seq),
    "a PING's seq is recorded": ("sequence numbers", _ping_records),
    "a HELLO lowers the last seq": ("sequence numbers", _lowers_last),
    "a known session needs no HELLO": ("before HELLO", frame_rule(_session_by_id)),
    "any session may speak": ("before HELLO", frame_rule(_any_session)),
    "a new session keeps the windows": ("a new session", _keeps_windows),
    "the oldest connection wins": ("newest wins", _set("newest_wins", False)),
    "half a message holds everybody up": ("newest wins", _set("one_at_a_time", True)),
    "any length is waited for": ("framing that is lost", _set("waits_for_any_length", True)),
    "no generation is stale": ("entries, edge by edge", entry_rule(_never_stale)),
    "generations do not wrap": ("entries, edge by edge", entry_rule(_plain_order)),
    "NEW_GEN makes an older one acceptable": (
        "entries, edge by edge", entry_rule(_new_gen_is_king)),
    "NEW_GEN does not empty": ("entries, edge by edge", entry_rule(_keeps_on_new_gen)),
    "a gap does not start anew": ("random steps", entry_rule(_no_gap)),
    "without rows nothing is rolled back": ("entries, edge by edge", entry_rule(_no_rollback)),
    "a window of W - 1": ("a full window", entry_rule(_one_row_less)),
    "negative window_rows wrap": ("entries, edge by edge", entry_rule(_wraps_below_zero)),
    "a stale entry empties the window": ("entries, edge by edge", entry_rule(_stale_empties)),
    "a bad entry empties the window": ("entries, edge by edge", entry_rule(_bad_empties)),
    "a slot twice is applied": ("STEPs that contradict themselves", _more_slots),
    "RESET does nothing": ("RESET", _reset(lambda _: 0)),
    "RESET discards all": ("RESET", _reset(lambda _: 0xFFFFFFFF)),
    "RESET forgets the last slot": ("RESET", _reset(lambda mask: mask & 7)),
    "STATS counts twice": ("STATS", _counts_twice),
    "drafts are constant": ("inside the window", _drafts(_constant)),
    "the anchor token is not read": ("inside the window", _blind_to_anchor),
    "drafts are kept in the window": ("drafts repeat", _drafts(_counting)),
    "rows before the window are seen": ("outside the window", _too_far_back),
    "slots share their rows": ("outside the window", _crosstalk),
    "NaN reaches the neighbours": ("neighbours", _nan_spreads),
    "NaN stays for ever": ("neighbours", _nan_stays),
}  # fmt: skip


@pytest.mark.parametrize("defect", RULES)
def test_a_rule_that_is_wrong_is_found(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, defect: str
) -> None:
    name, plant = RULES[defect]
    plant(worker, monkeypatch)
    assert failed(found_by(worker, name)), defect


# --- what is no defect ----------------------------------------------------------------------------


def test_another_reasonable_reading_is_an_info_and_no_failure(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R2, R24, R28: here by a worker that forgets generations at RESET."""

    def reset(mask: int) -> None:
        rounds = worker.desk._rounds
        rounds.slots = [
            Slot(None, EMPTY) if mask >> i & 1 else slot for i, slot in enumerate(rounds.slots)
        ]

    monkeypatch.setattr(worker.desk._rounds, "reset", reset)
    findings = found_by(worker, "RESET")
    assert failed(findings) == []
    (info,) = (one for one in findings if one.level is Level.INFO)
    assert info.came == "they are forgotten (not R24)"


def test_a_worker_that_goes_away_is_a_failure_and_the_rest_is_skipped(worker: Worker) -> None:
    def spoil(message: bytes, reply: bytes) -> bytes:
        if op_of(message) == Op.RESET:
            worker.close()
            raise ConnectionResetError
        return reply

    worker.spoil = spoil
    findings = list(examine(worker.subject(), n_rounds=10, n_fuzz=10))
    assert "it answers no PING any more" in [one.came for one in failed(findings)]
    assert findings[-1].level is Level.SKIP
    assert findings[-1].came.startswith("the worker was gone after: ")


def test_of_a_worker_with_other_terms_nothing_more_is_said(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        desk_room, "judge_hello", lambda *_: Verdict(FrameStatus.IDENTITY_MISMATCH, "another")
    )
    findings = list(examine(worker.subject(), n_rounds=10, n_fuzz=10))
    assert findings[0].came == "HELLO with the given terms: IDENTITY_MISMATCH, 128 bytes"
    assert {one.level for one in findings[1:]} == {Level.SKIP}
