"""The worker that a client is judged by: listens, answers as a right one would, and acts.

Decides when an act is due (after a few good rounds) and whether what follows is right. Ends when
all acts are through or the time is over; what did not happen is a SKIP.
"""

import contextlib
import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Final

from dsparkctl.conform.client.acts import ACTS, Act, Then
from dsparkctl.conform.client.judge import Judge
from dsparkctl.conform.finding import Clause, Finding
from dsparkctl.contract.codes import (
    CAN_TAPS_BF16,
    NEED_DRAFT,
    RESYNC,
    EntryStatus,
    FrameStatus,
    Op,
)
from dsparkctl.contract.errors import WireError
from dsparkctl.contract.framing import PREFIX_BYTES, message_bytes, prefix
from dsparkctl.contract.layout import pack
from dsparkctl.contract.messages import Step, frame, step_reply_frame
from dsparkctl.contract.records import AppHeader, Hello, HelloReply, ReplyHeader, ReqStatus
from dsparkctl.state.window import Outcome

GOOD_ROUNDS: Final = 3
"""Between two acts: the client is well again."""
SOONEST_S: Final = 0.7
"""A reconnect before this is no backoff (§10: about 1 s)."""
QUIET_S: Final = 6.0
"""So long a client that must stop is listened for."""


class Over(Exception):  # noqa: N818 -- what happened
    """The time is over."""


class Stand:
    """One listener, and one client after the other on it."""

    def __init__(
        self, terms: Hello, host: str, port: int, *, seconds: float, late_s: float
    ) -> None:
        """OSError when nothing can listen there; `late_s`: longer than the client waits."""
        self.judge = Judge(terms)
        self._terms = terms
        self._end_s = time.monotonic() + seconds
        self._late_s = late_s
        self._sock: socket.socket | None = None
        self._faults: set[str] = set()
        self._listener = socket.create_server((host, port))
        self.port: int = self._listener.getsockname()[1]

    def close(self) -> None:
        self._listener.close()
        if self._sock is not None:
            self._sock.close()

    def examine(self, acts: Sequence[Act] = ACTS) -> Iterator[Finding]:
        """Findings as they come."""
        rest = list(acts)
        try:
            yield from self._greeting()
            while rest:
                for _ in range(GOOD_ROUNDS):
                    yield from self._good_round()
                act = rest.pop(0)
                yield from self._play(act)
        except Over:
            for act in rest:
                yield Clause(act.clause, _told(act)).skipped("the time was over before it")
        said = f"{self.judge.n_steps} STEPs"
        yield Clause("§6 §7", "every message was one that a right client sends").judged(
            "; ".join(sorted(self._faults)[:3]), said, said
        )

    # --- what a right worker does -----------------------------------------------------------------

    def _greeting(self) -> Iterator[Finding]:
        message = self._next()
        header, _ = self.judge.header(message)
        is_hello = header is not None and header.op == Op.HELLO
        fault = self.judge.hello(message) if is_hello else "the first message is no HELLO"
        yield Clause("§6.2", "the first message is HELLO, with these terms").judged(fault, "accept")
        if header is not None and is_hello:
            self._send(self._hello_reply(header))

    def _good_round(self) -> Iterator[Finding]:
        header, step, outcomes = self._step()
        stray = self._is_readable(0.01)
        if stray and self._peek():
            yield Clause("§5", "one outstanding request").judged("more bytes came", "a wait")
        self._send(self._reply(header, step, outcomes))

    def _step(self) -> tuple[AppHeader, Step, list[Outcome]]:
        """The next STEP; HELLOs and PINGs on the way are answered."""
        while True:
            message = self._next()
            header, fault = self.judge.header(message)
            if header is None:
                self._note(fault)
                self._hang_up()
                continue
            self._note(fault)
            if header.op == Op.HELLO:
                self._note(self.judge.hello(message))
                self._send(self._hello_reply(header))
            elif header.op == Op.STEP:
                step, outcomes, fault = self.judge.step(message)
                self._note(fault)
                if step is not None:
                    return header, step, outcomes
                status = FrameStatus.MALFORMED
                self._send(frame(header.op, header.seq, header.session, b"", status))
            else:
                self._send(frame(header.op, header.seq, header.session))

    # --- acts -------------------------------------------------------------------------------------

    def _play(self, act: Act) -> Iterator[Finding]:
        header, step, outcomes = self._step()
        while not any(entry.req_flags & NEED_DRAFT for entry in step.entries):
            self._send(self._reply(header, step, outcomes))
            header, step, outcomes = self._step()
        reply = self._reply(header, step, outcomes)
        said = act.spoil(reply, header, step.head.n_req, self._terms.num_spec)
        if act.is_late:
            time.sleep(self._late_s)
        if said is not None:
            self._send(said, act.extra, is_half=act.closes)
        if act.closes:
            self._hang_up()
        acted_s, slots = time.monotonic(), {entry.slot for entry in step.entries}
        clause = Clause(act.clause, _told(act))
        match act.then:
            case Then.STOPS:
                yield clause.judged(self._keeps_quiet(), act.what)
            case Then.DROPS:
                yield clause.judged(self._comes_back(act, acted_s), act.what)
            case Then.GREETS:
                yield clause.judged(self._greets_first(), act.what)
            case _:
                yield clause.judged(self._resyncs(slots), act.what)

    def _comes_back(self, act: Act, acted_s: float) -> str:
        """A new connection, not at once, with HELLO; and a STEP that re-sends its windows."""
        old = self._sock
        if old is not None and not act.closes:
            fault = self._is_dropped(old)
            if fault:
                return fault
        self._accept()
        waited_s = time.monotonic() - acted_s
        if waited_s < SOONEST_S and not act.is_late:
            return f"it came back after {waited_s:.2f} s, expected about 1 s (§10, C1)"
        return self._greets_first()

    def _is_dropped(self, sock: socket.socket) -> str:
        """Nothing more may come on the connection but its end."""
        while True:
            self._wait(sock)
            try:
                data = sock.recv(65536)
            except OSError:
                data = b""
            if not data:
                self._hang_up()
                return ""
            return f"{len(data)} bytes came on the same connection"

    def _greets_first(self) -> str:
        message = self._next()
        header, fault = self.judge.header(message)
        if header is None or header.op != Op.HELLO:
            return f"{'no message' if header is None else Op(header.op).name}, expected HELLO"
        self._note(fault)
        self._note(self.judge.hello(message))
        self._send(self._hello_reply(header))
        return self._resyncs(None)

    def _resyncs(self, slots: set[int] | None) -> str:
        """The next STEPs re-send the windows of these slots (None: of all that come)."""
        header, step, outcomes = self._step()
        self._send(self._reply(header, step, outcomes))
        for entry in step.entries:
            if (slots is None or entry.slot in slots) and entry.anchor_pos:
                held = min(self._terms.window, entry.anchor_pos)
                if not entry.req_flags & RESYNC and entry.n_rows < held:
                    return f"slot {entry.slot}: {entry.n_rows} rows without RESYNC (§7.4)"
        return ""

    def _keeps_quiet(self) -> str:
        end_s = min(self._end_s, time.monotonic() + QUIET_S)
        while time.monotonic() < end_s:
            try:
                message = self._next(end_s)
            except Over:
                return ""
            header, _ = self.judge.header(message)
            if header is not None and header.op == Op.STEP:
                return "another STEP came"
            if header is not None and header.op == Op.HELLO:
                mismatch = FrameStatus.IDENTITY_MISMATCH
                self._send(frame(header.op, header.seq, header.session, bytes(128), mismatch))
        return ""

    # --- replies ----------------------------------------------------------------------------------

    def _hello_reply(self, header: AppHeader) -> bytes:
        terms = self._terms
        body = HelloReply(
            1, terms.max_slots, terms.max_rows_per_step, CAN_TAPS_BF16, terms.window,
            terms.num_spec, terms.drafter_identity, terms.markov_identity, b"conform-client",
        )  # fmt: skip
        return frame(Op.HELLO, header.seq, header.session, pack(body))

    def _reply(self, header: AppHeader, step: Step, outcomes: list[Outcome]) -> bytes:
        n, ids, confidence = self._terms.num_spec, list[int](), list[float]()
        for entry, outcome in zip(step.entries, outcomes, strict=True):
            wanted = entry.req_flags & NEED_DRAFT and outcome.status <= EntryStatus.PARTIAL_WINDOW
            k = min(entry.n_out or n, n) if wanted else 0
            ids += [(entry.anchor_token + 1 + j) % self._terms.vocab_size for j in range(k)]
            ids += [0] * (n - k)
            confidence += [0.5] * k + [0.0] * (n - k)
        return step_reply_frame(
            seq=header.seq,
            session=header.session,
            head=ReplyHeader(step.head.step_id, step.head.n_req, n, 0, 1, 1, (0, 0)),
            statuses=[
                ReqStatus(one.status, one.window_rows, entry.generation)
                for one, entry in zip(outcomes, step.entries, strict=True)
            ],
            draft_ids=ids,
            confidence=confidence,
            margin=None,
        )

    # --- the wire ---------------------------------------------------------------------------------

    def _note(self, fault: str) -> None:
        if fault and len(self._faults) < 50:
            self._faults.add(fault)

    def _accept(self) -> None:
        self._wait(self._listener)
        self._hang_up()
        self._sock, _ = self._listener.accept()
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.judge.connected()

    def _next(self, end_s: float | None = None) -> bytes:
        """The next whole message, of a new connection where the last one has ended."""
        while True:
            if self._sock is None:
                self._wait(self._listener, end_s)
                self._accept()
            assert self._sock is not None
            try:
                head = self._exactly(PREFIX_BYTES, end_s)
                return self._exactly(message_bytes(head), end_s)
            except WireError as error:
                self._note(str(error))
            except OSError:
                pass
            self._hang_up()

    def _exactly(self, n_bytes: int, end_s: float | None) -> bytes:
        assert self._sock is not None
        data = bytearray()
        while len(data) < n_bytes:
            self._wait(self._sock, end_s)
            more = self._sock.recv(n_bytes - len(data))
            if not more:
                raise ConnectionResetError
            data += more
        return bytes(data)

    def _send(self, reply: bytes, extra: bytes = b"", *, is_half: bool = False) -> None:
        if self._sock is None:
            return
        length = prefix(len(reply) * (2 if is_half else 1))
        with contextlib.suppress(OSError):
            self._sock.sendall(length + reply + extra)

    def _hang_up(self) -> None:
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
            self._sock.close()
            self._sock = None

    def _peek(self) -> bool:
        assert self._sock is not None
        try:
            return bool(self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            return False

    def _is_readable(self, wait_s: float) -> bool:
        return self._sock is not None and bool(select.select([self._sock], [], [], wait_s)[0])

    def _wait(self, sock: socket.socket, end_s: float | None = None) -> None:
        left_s = (self._end_s if end_s is None else end_s) - time.monotonic()
        if left_s <= 0 or not select.select([sock], [], [], left_s)[0]:
            raise Over


def _told(act: Act) -> str:
    return f"{act.what}: {act.then.value}"
