"""A recording sent to a worker once more, and what it answers against what was answered then.

Decides what may be compared: entries whose window was as full then as now (a ring begins in the
middle of windows), by status, draft ids, and confidences within what another batch shape may round
(§7.4). Needs a recording with rows, and its HELLO.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from dsparkctl.conform.line import Line, NoAnswer
from dsparkctl.contract.codes import FrameStatus, Op
from dsparkctl.contract.errors import WireError
from dsparkctl.contract.framing import HEADER_BYTES
from dsparkctl.contract.messages import StepReply, frame, parse_header, parse_step_reply
from dsparkctl.contract.records import AppHeader
from dsparkctl.net.flight.pcapng import Packet

NEAR: Final = 0.02


class Exchanged(NamedTuple):
    """A request and its reply, or why there is none."""

    request: Packet
    reply: Packet | None
    remark: str = ""

    @property
    def header(self) -> AppHeader | None:
        """The request's."""
        try:
            return parse_header(self.request.data, self.request.n_bytes)
        except WireError:
            return None


def exchanges(packets: Iterable[Packet]) -> Iterator[Exchanged]:
    """Requests with what came of them, in their order."""
    waiting: Packet | None = None
    for packet in packets:
        if packet.is_request:
            if waiting is not None:
                yield Exchanged(waiting, None, "no answer was recorded")
            waiting = packet
        elif waiting is not None:
            if packet.n_bytes:
                yield Exchanged(waiting, packet)
            else:
                yield Exchanged(waiting, None, packet.comment)
            waiting = None
    if waiting is not None:
        yield Exchanged(waiting, None, "no answer was recorded")


class Compared(NamedTuple):
    """One STEP's entry, then and now."""

    step_id: int
    entry: int
    is_same: bool
    said: str
    """What differs, or why it cannot be compared."""
    is_comparable: bool = True


def compared(then: StepReply, now: StepReply) -> Iterator[Compared]:
    """Entry by entry."""
    n = then.head.num_spec
    for i, (old, new) in enumerate(zip(then.statuses, now.statuses, strict=False)):
        step_id = then.head.step_id
        if old.window_rows != new.window_rows:
            rows = f"window of {old.window_rows} rows then, {new.window_rows} now"
            yield Compared(step_id, i, False, rows, False)
            continue
        at = slice(i * n, (i + 1) * n)
        if old.status != new.status:
            yield Compared(step_id, i, False, f"status {old.status} then, {new.status} now")
        elif then.draft_ids[at] != now.draft_ids[at]:
            ids = f"drafts {then.draft_ids[at]} then, {now.draft_ids[at]} now"
            yield Compared(step_id, i, False, ids)
        else:
            pairs = zip(then.confidence[at], now.confidence[at], strict=True)
            far = max(abs(a - b) for a, b in pairs)
            said = "" if far <= NEAR else f"confidences up to {far:.3f} apart"
            yield Compared(step_id, i, not said, said)


def step_reply(packet: Packet | None) -> StepReply | None:
    """A reply to a STEP that was OK and is there in full."""
    if packet is None or not packet.is_whole:
        return None
    try:
        header = parse_header(packet.data)
        if header.op == Op.STEP and header.status == FrameStatus.OK:
            return parse_step_reply(packet.data[HEADER_BYTES:])
    except WireError:
        return None
    return None


def replay(line: Line, found: Iterable[Exchanged], session: int) -> Iterator[Compared]:
    """Every recorded request that a worker can be asked again, with seqs of a new session.

    NoAnswer where HELLO is missing or refused, or the worker falls silent.
    """
    seq, is_greeted = 0, False
    for one in found:
        header = one.header
        if header is None or header.op not in (Op.HELLO, Op.STEP, Op.RESET):
            continue
        if not one.request.is_whole:
            raise NoAnswer("the recording has no rows: record with RECORD_ROWS=1 (--record-rows)")
        if header.op == Op.HELLO and is_greeted:
            continue  # one session is enough; the ring says its terms in each file
        if not is_greeted and header.op != Op.HELLO:
            raise NoAnswer("the recording does not begin with HELLO")
        seq += 1
        body = one.request.data[HEADER_BYTES:]
        answer = line.ask(frame(header.op, seq, session, body))
        if answer.header is None:
            raise NoAnswer(f"{Op(header.op).name} {seq}: {answer}")
        if header.op == Op.HELLO:
            if answer.status:
                raise NoAnswer(f"HELLO as recorded: {answer}")
            is_greeted = True
            continue
        then = step_reply(one.reply)
        now = parse_step_reply(answer.body) if header.op == Op.STEP and not answer.status else None
        if then is not None and now is not None:
            yield from compared(then, now)


def differences(first: Iterable[Exchanged], second: Iterable[Exchanged]) -> Iterator[Compared]:
    """Two recordings by step_id: what the same STEPs were answered."""
    later = {
        reply.head.step_id: reply for one in second if (reply := step_reply(one.reply)) is not None
    }
    for one in first:
        then = step_reply(one.reply)
        if then is not None and then.head.step_id in later:
            yield from compared(then, later[then.head.step_id])
