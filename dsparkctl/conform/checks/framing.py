"""How messages lie on the stream (§5), and the header that stands before each (§6.1)."""

from collections.abc import Callable, Iterator
from typing import Final

from dsparkctl.conform.cases import CLOSED, Case, Outcome, is_allowed, play
from dsparkctl.conform.finding import Clause, Finding
from dsparkctl.conform.subject import Subject, Talk
from dsparkctl.contract.codes import MAGIC, VERSION, FrameStatus, Op
from dsparkctl.contract.framing import MAX_MESSAGE_BYTES, prefix
from dsparkctl.contract.layout import pack
from dsparkctl.contract.messages import frame
from dsparkctl.contract.records import AppHeader

_LOST: Final[dict[Outcome, str]] = {
    CLOSED: "",
    FrameStatus.MALFORMED: "an answer where framing is lost (not R32)",
}


NO_STREAM: Final = "this carrier keeps messages apart"
_N_HONEST: Final = 3
"""The first so many of the messages below lie in their header, the others in their length."""


def _header(talk: Talk, **of: int) -> bytes:
    given = {"magic": MAGIC, "version": VERSION, "op": Op.PING, "seq": 9, "session": talk.session,
             "body_len": 0, "status": 0, "flags": 0}  # fmt: skip
    return pack(AppHeader(**{**given, **of}))


CASES: Final = [
    Case("§6.1", "version 2 is BAD_VERSION", lambda t: _header(t, version=2),
         {FrameStatus.BAD_VERSION: ""}),
    Case("§6.1", "op 99 is UNSUPPORTED_OP", lambda t: _header(t, op=99),
         {FrameStatus.UNSUPPORTED_OP: ""}),
    Case("§6.1", "op 0 is UNSUPPORTED_OP", lambda t: _header(t, op=0),
         {FrameStatus.UNSUPPORTED_OP: ""}, lambda t: t.subject.is_stream),  # ofl's own echo
    Case("§7.4", "op 6 is reserved: UNSUPPORTED_OP", lambda t: _header(t, op=6),
         {FrameStatus.UNSUPPORTED_OP: ""}),
    Case("§6.1 R36", "a wrong version is told before an unknown op",
         lambda t: _header(t, version=2, op=99),
         {FrameStatus.BAD_VERSION: "R36", FrameStatus.UNSUPPORTED_OP: "op first (not R36)"}),
    Case("§6.1 R27", "reserved flags and a request's status are ignored",
         lambda t: _header(t, flags=0xFFFFFFFF, status=-7), {FrameStatus.OK: ""}),
    Case("§6.6 R13", "a PING with a body", lambda t: frame(Op.PING, 9, t.session, b"x" * 100),
         {FrameStatus.OK: "R13: the body is ignored", FrameStatus.MALFORMED: "not R13"}),
    Case("§6.5 R13", "a STATS with a body", lambda t: frame(Op.STATS, 9, t.session, b"x"),
         {FrameStatus.OK: "R13: the body is ignored", FrameStatus.MALFORMED: "not R13"}),
    Case("§6.1", "a seq of 2**64 - 1 is echoed", lambda t: _header(t, seq=2**64 - 1),
         {FrameStatus.OK: ""}),
]  # fmt: skip


def headers(on: Subject) -> Iterator[Finding]:
    with on.session() as talk:
        yield from play(talk, CASES)


def echoes(on: Subject) -> Iterator[Finding]:
    clause = Clause("§6.1", "a reply echoes magic, version, op, seq and session")
    with on.session() as talk:
        answer = talk.line.ask(_header(talk, seq=0x0123456789ABCDEF))
        head = answer.header
        wanted = (MAGIC, VERSION, Op.PING, 0x0123456789ABCDEF, talk.session, 0, 0)
        fault = "" if head is not None and head[:7] == wanted else f"{head}"
        yield clause.judged(fault, "PING with seq 0x0123456789abcdef")


def lost(on: Subject) -> Iterator[Finding]:
    """Bytes behind which nobody can find the next message."""
    over, big = MAX_MESSAGE_BYTES + 1, 0xFFFFFFFF
    lost_ones: list[tuple[str, Callable[[Talk], bytes]]] = [
        ("a wrong magic", lambda t: prefix(32) + _header(t, magic=0x50545448)),
        ("a body_len beyond the message", lambda t: prefix(32) + _header(t, body_len=64)),
        ("a body_len short of the message", lambda t: prefix(40) + _header(t) + bytes(8)),
        ("a length below a header's", lambda _: prefix(31) + bytes(31)),
        ("a length of 0", lambda _: prefix(0)),
        ("a length over 16 MiB", lambda t: prefix(over) + _header(t, body_len=over - 32)),
        ("a length of 2**32 - 1", lambda t: prefix(big) + _header(t, body_len=big - 32)),
    ]
    for number, (what, made) in enumerate(lost_ones):
        clause = Clause("§5 R32 R33", f"the connection is closed at once: {what}")
        if number >= _N_HONEST and not on.is_stream:
            yield clause.skipped(NO_STREAM)
            continue
        with on.session() as talk:
            talk.line.put(made(talk))
            yield is_allowed(clause, _LOST, talk.line.receive(), what)


def pieces(on: Subject) -> Iterator[Finding]:
    """A stream has no edges: a message may come in any pieces, and two in one."""
    ping = _ping(7)
    if not on.is_stream:
        yield Clause("§5", "messages in pieces").skipped(NO_STREAM)
        return
    with on.session() as talk:
        clause = Clause("§5", "a message that comes byte by byte is answered")
        for i in range(len(ping)):
            talk.line.put(ping[i : i + 1])
        answer = talk.line.receive()
        yield clause.judged("" if answer.status == 0 else str(answer), "PING in 36 pieces")

        clause = Clause("§5 R34", "two messages in one segment are answered in their order")
        talk.line.put(_ping(8) + _ping(9))
        seqs = [answer.header.seq if answer.header else str(answer)
                for answer in (talk.line.receive(), talk.line.receive())]  # fmt: skip
        yield clause.judged("" if seqs == [8, 9] else f"answers {seqs}", "PING 8 and PING 9")

        clause = Clause("§5", "one request has one reply, and no byte behind it")
        talk.line.put(_ping(10))
        answer = talk.line.receive()
        fault = str(answer) if answer.status else ""
        fault = "a byte lies behind the reply" if talk.line.has_stray() else fault
        yield clause.judged(fault, "PING")


def _ping(seq: int) -> bytes:
    message = frame(Op.PING, seq, 0)
    return prefix(len(message)) + message
