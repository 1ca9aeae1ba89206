"""The desk under any messages, sound and mangled, on both routes, with a drafter that misbehaves.

Always one reply that parses and that rank 0 accepts; no exception escapes; no count goes down, and
each moves by exactly one per event (R35).
"""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dspark_worker.drafter import Draft
from dsparkctl.contract.codes import NEED_DRAFT, EntryStatus, FrameStatus, Op
from dsparkctl.contract.messages import frame, hello_frame, parse_hello_reply, parse_step_reply
from dsparkctl.contract.records import Hello, ReqEntry
from tests.unit.dspark_worker.fake import (
    MAX_LEN,
    OWN,
    SLOTS,
    VOCAB,
    N,
    Talk,
    W,
    refusal_of,
    step_frame,
)

SESSIONS = st.sampled_from([1, 1, 1, 2, 0, 0xFFFFFFFF])
SEQS = st.one_of(st.none(), st.none(), st.none(), st.integers(0, (1 << 64) - 1))
GENERATIONS = st.sampled_from([0, 1, 1, 1, 2, 3, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
POSITIONS = st.one_of(st.integers(-1, MAX_LEN + 2), st.integers(0, 2 * W), I64)


@st.composite
def entries(draw: st.DrawFn, slot: int) -> ReqEntry:
    n_rows = draw(st.sampled_from([0, 1, 1, 2, W, W + 1]))
    first_pos = draw(POSITIONS)
    anchor_pos = min(first_pos + n_rows, (1 << 63) - 1)
    if draw(st.integers(0, 9)) == 0:
        anchor_pos = draw(POSITIONS)
    return ReqEntry(
        slot,
        draw(st.sampled_from([NEED_DRAFT, NEED_DRAFT, NEED_DRAFT | 1, 0, 0xFF])),
        draw(st.integers(0, 255)),
        draw(st.sampled_from([0, 0, 1, N, N + 1, 255])),
        draw(GENERATIONS),
        first_pos,
        n_rows,
        draw(st.sampled_from([0, 1, VOCAB - 1, VOCAB, -1])),
        anchor_pos,
    )


@st.composite
def steps(draw: st.DrawFn) -> list[ReqEntry]:
    unique = draw(st.integers(0, 9)) > 0
    slot = st.integers(0, SLOTS - 1) if unique else st.integers(0, SLOTS)
    slots = draw(st.lists(slot, min_size=1, max_size=SLOTS if unique else 5, unique=unique))
    return [draw(entries(slot)) for slot in slots]


@st.composite
def hellos(draw: st.DrawFn) -> Hello:
    if draw(st.booleans()):
        return OWN
    name = draw(
        st.sampled_from([n for n in Hello._fields if not isinstance(getattr(OWN, n), bytes)])
    )
    value: Any = draw(st.integers(0, 0xFFFFFFFF))
    changed: Any = {name: (value, 0, 0, 0) if name == "tap_layer_ids" else value}
    return OWN._replace(**changed)


class DeskMachine(RuleBasedStateMachine):
    """Two routes, one desk; the counts are predicted from the replies alone."""

    @initialize()
    def start(self) -> None:
        self.talk = Talk()
        self.last_seq = 0
        self.expected = {"connections": 1}
        self.refused: dict[str, int] = {}
        self.known = self.talk.desk.snapshot()
        self.settle()

    def expect(self, key: str, n: int = 1) -> None:
        self.expected[key] = self.expected.get(key, 0) + n

    def ask(self, message: bytes, admin: bool = False) -> tuple[FrameStatus, bytes]:
        """`Talk.ask` checks the echoes; a code that §9.1 does not have is a ValueError."""
        header, body = self.talk.ask(message, admin=admin)
        status = FrameStatus(header.status)
        if status:
            self.refused[status.name] = self.refused.get(status.name, 0) + 1
            if header.op == Op.HELLO:
                parse_hello_reply(body)  # R8
            else:
                assert body == b""  # R9
        return status, body

    def seq(self, seq: int | None) -> int:
        return min(self.last_seq + 1, (1 << 64) - 1) if seq is None else seq

    @rule(hello=hellos(), session=SESSIONS, admin=st.sampled_from([False, False, True]))
    def hello(self, hello: Hello, session: int, admin: bool) -> None:
        status, body = self.ask(hello_frame(1, session, hello), admin)
        assert parse_hello_reply(body).window == W
        if not status:
            assert not admin
            self.expect("hellos")
            self.last_seq = self.talk.desk.snapshot()["last_seq"]

    @rule()
    def settle(self) -> None:
        """Most rounds should find a session."""
        self.hello(OWN, 1, False)

    @rule(greets=st.sampled_from([True, True, True, False]))
    def connect(self, greets: bool) -> None:
        """A new connection has no session (R4) until it says HELLO."""
        self.talk.desk.connected()
        self.expect("connections")
        if greets:
            self.settle()

    @rule(op=st.sampled_from([Op.PING, Op.STATS]), seq=SEQS, session=SESSIONS, admin=st.booleans())
    def look(self, op: Op, seq: int | None, session: int, admin: bool) -> None:
        status, body = self.ask(frame(op, self.seq(seq), session), admin)
        assert status is FrameStatus.OK
        assert (body == b"") == (op is Op.PING)
        if op is Op.PING:
            self.expect("pings")

    @rule(
        mask=st.integers(0, 0xFFFFFFFF),
        n_bytes=st.sampled_from([4, 4, 4, 0, 3, 5]),
        seq=SEQS,
        session=SESSIONS,
        admin=st.booleans(),
    )
    def reset(self, mask: int, n_bytes: int, seq: int | None, session: int, admin: bool) -> None:
        body = (mask.to_bytes(4, "little") + b"\0")[:n_bytes]
        status, _ = self.ask(frame(Op.RESET, self.seq(seq), session, body), admin)
        if not status:
            self.expect("resets")
            if not admin:
                self.last_seq = self.seq(seq)
        assert (status is FrameStatus.MALFORMED) == (n_bytes != 4) or not admin

    @rule(
        asked=steps(),
        seq=SEQS,
        session=SESSIONS,
        flags=st.integers(0, 3),
        step_id=st.integers(0, 9),
    )
    def step(
        self, asked: list[ReqEntry], seq: int | None, session: int, flags: int, step_id: int
    ) -> None:
        message = step_frame(
            *asked, seq=self.seq(seq), session=session, flags=flags, step_id=step_id
        )
        status, body = self.ask(message)
        if status:
            return
        self.last_seq = self.seq(seq)
        reply = parse_step_reply(body)
        assert refusal_of(reply, asked, step_id) == ""
        assert (reply.margin is not None) == bool(flags & 1)
        self.expect("steps")
        for entry, given in zip(asked, reply.statuses, strict=True):
            if entry.req_flags & 4:
                self.expect("resyncs")
            if given.status <= EntryStatus.PARTIAL_WINDOW:
                self.expect("rows", entry.n_rows)
                self.expect("drafted_requests", int(bool(entry.req_flags & NEED_DRAFT)))
            self.expect(
                ("", "partial_windows", "stale_generation", "bad_entries", "internal_entries")[
                    given.status
                ]
            )

    @rule(
        asked=steps(),
        op=st.integers(0, 7),
        cut=st.integers(0, 200),
        place=st.integers(4, 150),
        byte=st.integers(0, 255),
        admin=st.booleans(),
    )
    def mangled(
        self, asked: list[ReqEntry], op: int, cut: int, place: int, byte: int, admin: bool
    ) -> None:
        """A well-framed message of which nothing else is sure."""
        message = bytearray(step_frame(*asked, seq=self.seq(None)))
        message = message[: max(32, len(message) - cut)]
        message[6] = op
        if place < len(message):
            message[place] = byte
        message[20:24] = (len(message) - 32).to_bytes(4, "little")
        self.talk.ask(bytes(message), admin=admin)
        # What it counted is not predicted: only that nothing went down.
        after = self.talk.desk.snapshot()
        assert_grown(self.known, after)
        self.last_seq = after["last_seq"]
        self.expected = {key: after[key] for key in COUNTS}
        self.refused = dict(after["frames_refused"])

    @rule(slot=st.integers(0, SLOTS - 1), fault=st.sampled_from(range(7)))
    def misbehave(self, slot: int, fault: int) -> None:
        drafter = self.talk.drafter
        sets = (
            *(drafter.append_raises, drafter.append_faults, drafter.append_forgets),
            *(drafter.draft_raises, drafter.draft_faults, drafter.draft_forgets),
        )
        if fault < len(sets):
            sets[fault].add(slot)
        else:
            drafter.draft_says[slot] = Draft([VOCAB] * N, [2.0] * N, [-1.0] * N)

    @rule()
    def recover(self) -> None:
        drafter = self.talk.drafter
        for each in (drafter.append_raises, drafter.append_faults, drafter.append_forgets):
            each.clear()
        for each in (drafter.draft_raises, drafter.draft_faults, drafter.draft_forgets):
            each.clear()
        drafter.draft_says.clear()

    @invariant()
    def counts_are_those_of_the_replies(self) -> None:
        if not hasattr(self, "talk"):
            return
        after = self.talk.desk.snapshot()
        assert_grown(self.known, after)
        for key in COUNTS:
            assert after[key] == self.expected.get(key, 0), key
        assert after["frames_refused"] == self.refused
        assert after["last_seq"] == self.last_seq
        for slot in after["slots"]:
            if slot["lo_pos"] is not None:
                assert 0 <= slot["lo_pos"] <= slot["hi_pos"] < slot["lo_pos"] + W
                assert slot["hi_pos"] < MAX_LEN
        self.known = after


COUNTS = (
    *("steps", "rows", "drafted_requests", "partial_windows", "stale_generation", "bad_entries"),
    *("internal_entries", "resyncs", "hellos", "resets", "pings", "connections"),
)


def assert_grown(before: dict[str, Any], after: dict[str, Any]) -> None:
    for key in COUNTS:
        assert 0 <= before[key] <= after[key], key
    for name in ("accepted_hist", "verified_per_position", "accepted_per_position"):
        for old, new in zip(before[name], after[name], strict=True):
            assert 0 <= old <= new
    for accepted, verified in zip(
        after["accepted_per_position"], after["verified_per_position"], strict=True
    ):
        assert accepted <= verified


TestDeskMachine = DeskMachine.TestCase
TestDeskMachine.settings = settings(max_examples=100, stateful_step_count=50)
