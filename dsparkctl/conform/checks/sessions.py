"""Sessions, sequence numbers and connections (§7.5): who may speak, and what is applied twice."""

from collections.abc import Iterator
from typing import Final

from dsparkctl.conform.cases import N_KEPT, Outcome, disturbed, is_allowed, keep
from dsparkctl.conform.checks.framing import NO_STREAM
from dsparkctl.conform.finding import Clause, Finding
from dsparkctl.conform.line import Kind
from dsparkctl.conform.subject import Subject, Talk, entry
from dsparkctl.contract.codes import EntryStatus, FrameStatus, Op
from dsparkctl.contract.framing import prefix
from dsparkctl.contract.layout import pack
from dsparkctl.contract.messages import frame
from dsparkctl.contract.records import Reset

NO_SESSION: Final[dict[Outcome, str]] = {FrameStatus.NO_SESSION: ""}
STALE: Final[dict[Outcome, str]] = {FrameStatus.STALE_SEQ: ""}
FINE: Final[dict[Outcome, str]] = {FrameStatus.OK: ""}
_SOON_S: Final = 2.0


def before_hello(on: Subject) -> Iterator[Finding]:
    with on.session() as talk:
        keep(talk)
        known = talk.session
    with on.line() as line:
        talk = Talk(on, line, known)
        talk.seq = 1000
        yield is_allowed(
            Clause("§7.5 R4", "a STEP of the known session on a new connection"),
            NO_SESSION,
            talk.step([entry(0, N_KEPT, 1)]),
            "STEP without HELLO",
        )
        yield is_allowed(
            Clause("§7.5", "a RESET without HELLO"),
            NO_SESSION,
            talk.reset(1),
            "RESET without HELLO",
        )
        yield is_allowed(
            Clause("§6.6 R1", "PING is answered before HELLO"),
            FINE,
            talk.ping(),
            "PING without HELLO",
        )
        yield is_allowed(
            Clause("§6.5 R35", "STATS before HELLO"),
            {FrameStatus.OK: "R35: answered", FrameStatus.NO_SESSION: "refused (not R35)"},
            talk.stats(),
            "STATS without HELLO",
        )
        clause = Clause("§6.2 §7.5", "the same session on a new connection keeps its windows")
        talk.greet()
        yield clause.judged(disturbed(talk), "HELLO of the same session")
        other = talk.step([entry(0, N_KEPT, 1)], session=talk.session ^ 1)
        yield is_allowed(Clause("§7.5", "a STEP of another session"), NO_SESSION, other, "STEP")
        yield Clause("§7.5", "a STEP of another session is not applied").judged(
            disturbed(talk), "STEP of another session"
        )  # fmt: skip


def sequence(on: Subject) -> Iterator[Finding]:
    with on.session() as talk:
        keep(talk)
        one = [entry(0, N_KEPT, 1)]
        last = talk.seq
        for what, seq in (("the last seq again", last), ("a lower seq", 1), ("seq 0", 0)):
            yield is_allowed(
                Clause("§7.5", f"{what} is STALE_SEQ"),
                STALE,
                talk.step(one, seq=seq),
                f"STEP with seq {seq} after {last}",
            )
            yield Clause("§7.5", f"{what} is not applied").judged(disturbed(talk), "STEP")
            last = talk.seq
        yield is_allowed(
            Clause("§7.5 R2", "a RESET with a stale seq"),
            {FrameStatus.STALE_SEQ: "R2", FrameStatus.OK: "RESET's seq is not checked (not R2)"},
            talk.line.ask(frame(Op.RESET, 1, talk.session, pack(Reset(0)))),
            "RESET with seq 1",
        )
        ping = talk.line.ask(frame(Op.PING, 1, talk.session))
        yield is_allowed(Clause("§6.6 R1", "PING with a stale seq is answered"), FINE, ping, "PING")
        talk.line.ask(frame(Op.PING, 2**63, talk.session))
        yield Clause("§6.6 R1", "a PING's seq is not recorded").judged(
            disturbed(talk), "PING with seq 2**63"
        )
        talk.line.ask(frame(Op.STATS, 2**63, talk.session))
        answer = talk.step([entry(0, 0, 0, anchor_pos=N_KEPT)])
        yield is_allowed(
            Clause("§7.5 R2", "a STATS' seq is not recorded"),
            {FrameStatus.OK: "R2", FrameStatus.STALE_SEQ: "recorded (not R2)"},
            answer, "STATS with seq 2**63",
        )  # fmt: skip
        if answer.status:
            return
        spoilt = frame(Op.STEP, talk.seq + 50, talk.session, b"\0" * 8)
        talk.line.ask(spoilt)
        talk.step_id += 1
        yield is_allowed(
            Clause("§7.5 R2", "the seq of a frame that is MALFORMED"),
            {FrameStatus.OK: "R2: not recorded", FrameStatus.STALE_SEQ: "recorded (not R2)"},
            talk.step([entry(0, 0, 0, anchor_pos=N_KEPT)], seq=talk.seq + 50),
            "a good STEP with the seq of a bad one",
        )
        talk.seq += 60
        gap = talk.step([entry(0, 0, 0, anchor_pos=N_KEPT)], seq=2**40)
        yield is_allowed(Clause("§7.5", "gaps between seqs are fine"), FINE, gap, "seq 2**40")
        talk.seq = 2**40
        again = talk.line.ask(_hello(talk, 1))
        yield is_allowed(
            Clause("§6.2 R3", "a HELLO's own seq is not checked"), FINE, again, "HELLO with seq 1"
        )
        low = talk.step([entry(0, 0, 0, anchor_pos=N_KEPT)], seq=2**40 - 1)
        yield is_allowed(
            Clause("§6.2 R3", "a HELLO of the same session does not lower the last seq"), STALE,
            low, "STEP with a seq from before",
        )  # fmt: skip
        talk.step_id += 1


def new_session(on: Subject) -> Iterator[Finding]:
    """All state of the old one is gone: windows, and generations too (R23)."""
    with on.session() as talk:
        talk.drafted([entry(0, 0, N_KEPT, generation=100)])
        talk.session, talk.seq = on.session_id(), 0
        talk.greet()
        (found,) = talk.drafted([entry(0, 0, 0, anchor_pos=N_KEPT, generation=7)])
        came = found.status.status
        is_stale = came == EntryStatus.STALE_GENERATION
        yield Clause("§6.2 R23", "generations of the old session are forgotten").judged(
            _of(came) if is_stale else "", "generation 7 behind 100"
        )
        yield Clause("§6.2", "a new session has no window of the old one").judged(
            "" if is_stale or came == EntryStatus.BAD_ENTRY else _of(came), "an anchor alone"
        )
        slot = talk.hello.max_slots - 1
        (found,) = talk.drafted([entry(slot, 0, 1, generation=0x80000005)])
        came = found.status.status
        yield Clause("§6.2 R23", "a slot's first generation is any").judged(
            "" if came == EntryStatus.OK else _of(came), "generation 0x80000005"
        )


def newest_wins(on: Subject) -> Iterator[Finding]:
    clause = Clause("§7.5", "a new connection closes the one before it")
    with on.session() as old:
        keep(old)
        with on.line() as line:
            new = Talk(on, line, old.session)
            new.seq = old.seq
            new.greet()
            closed = old.line.receive(_SOON_S)
            fault = "" if closed.kind is Kind.CLOSED else f"the old one: {closed}"
            yield clause.judged(fault, "a second connection")
            yield Clause("§7.5", "the windows are kept for the new connection").judged(
                disturbed(new), "HELLO of the same session"
            )
    quiet = Clause("§7.5", "a connection that never says a word holds nobody up")
    with on.line(), on.line() as line:
        answer = line.ask(frame(Op.PING, 1, 0))
        yield quiet.judged("" if answer.status == 0 else str(answer), "a silent connection")
    half = Clause("§7.5", "a connection that stops in the middle of a message holds nobody up")
    if not on.is_stream:
        yield half.skipped(NO_STREAM)
        return
    with on.session() as stuck:
        message = frame(Op.PING, 1, 0, bytes(1000))
        stuck.line.put((prefix(len(message)) + message)[:500])
        with on.line() as line:
            answer = line.ask(frame(Op.PING, 1, 0))
            yield half.judged("" if answer.status == 0 else str(answer), "half a message")
    gone = Clause("§5", "a peer that leaves in the middle of a message takes nobody along")
    with on.line() as line:
        line.put(prefix(1 << 20) + bytes(100))
    yield gone.judged("" if on.is_alive() else "no answer to PING afterwards", "an end")


def _hello(talk: Talk, seq: int) -> bytes:
    return frame(Op.HELLO, seq, talk.session, pack(talk.hello))


def _of(status: int) -> str:
    return EntryStatus(status).name
