"""Rank 0's one connection (§5, §7.5, §9.1, §10): when it dials, what it says, when it gives up."""

import logging
from collections.abc import Callable
from itertools import count

import pytest

from dsparkctl.client.fallback import Outcome
from dsparkctl.client.link import Exchange, WorkerLink, differences
from dsparkctl.contract.codes import CAN_MAINX_BF16, NEED_DRAFT, NEW_GEN, FrameStatus, Op
from dsparkctl.contract.framing import HEADER_BYTES
from dsparkctl.contract.layout import Buffer
from dsparkctl.contract.messages import frame, parse_header, step_head
from dsparkctl.contract.records import ReqEntry
from dsparkctl.net.ask import NotOurs
from dsparkctl.net.transport import Broken, NotInThisBuild, TimedOut
from tests.unit.client.fakes import (
    HELLO,
    HELLO_REPLY,
    ROW_BYTES,
    Clock,
    FakeDial,
    Fault,
    GoodWorker,
    raising,
    status,
)

FATAL = [
    FrameStatus.BAD_VERSION,
    FrameStatus.IDENTITY_MISMATCH,
    FrameStatus.CONFIG_MISMATCH,
    FrameStatus.UNSUPPORTED_OP,
]
SAY_HELLO = [FrameStatus.NO_SESSION, FrameStatus.STALE_SEQ]
ROUND_FAILED = [FrameStatus.MALFORMED, FrameStatus.CAPACITY, FrameStatus.INTERNAL]
UNKNOWN = [10, 77, -1, 0x7FFFFFFF, -0x80000000]


class Rank0:
    """A link on a clock that stands still, with a worker that answers."""

    def __init__(self, timeout_s: float = 0.05) -> None:
        self.clock = Clock()
        self.dial = FakeDial(GoodWorker())
        sessions = count(0x51)
        self.link = WorkerLink(
            HELLO,
            self.dial,
            timeout_s=timeout_s,
            clock=self.clock,
            new_session=lambda: next(sessions),
        )

    def step(self, epoch: int | None = None) -> Exchange:
        """A STEP of one request without rows, at position 0 (R17)."""
        entry = ReqEntry(0, NEED_DRAFT | NEW_GEN, 0, 0, 1, 0, 0, 1, 0)

        def build(seq: int, session: int) -> list[Buffer]:
            head = step_head(
                seq=seq,
                session=session,
                step_id=9,
                step_flags=0,
                row_bytes=ROW_BYTES,
                entries=[entry],
            )
            return [head]

        return self.link.step(build, self.link.epoch if epoch is None else epoch)

    def spoil(self, op: Op, *faults: Fault) -> None:
        self.dial.faults[op] += faults

    def ready_after(self, seconds: float) -> bool:
        self.clock.wait(seconds)
        return self.link.ready()

    def waits(self) -> float:
        """Seconds until the next attempt, in steps that floats hold exactly."""
        n_before, waited = len(self.dial.dialled), 0.0
        while len(self.dial.dialled) == n_before:
            assert waited < 100
            self.clock.wait(1 / 64)
            waited += 1 / 64
            self.link.ready()
        return waited


def connected() -> Rank0:
    rank0 = Rank0()
    assert rank0.link.ready()
    return rank0


# --- connecting -----------------------------------------------------------------------------------


def test_the_first_attempt_is_made_at_once_and_says_hello_before_any_step() -> None:
    """§6.2."""
    rank0 = connected()
    assert rank0.dial.ops() == [Op.HELLO]
    assert (rank0.link.epoch, rank0.link.n_connections) == (1, 1)
    assert rank0.link.worker_name == "good worker"
    assert rank0.link.has_margin
    assert rank0.link.ready()
    assert rank0.dial.ops() == [Op.HELLO]


def test_c8_hello_takes_a_seq_and_every_message_one_more() -> None:
    """C8: the first HELLO 1, then each message; a HELLO of the same session goes on."""
    rank0 = connected()
    rank0.step()
    rank0.step()
    rank0.link.drop("a test")
    rank0.ready_after(1)
    rank0.step()
    assert [(header.op, header.seq) for header in rank0.dial.sent] == [
        (Op.HELLO, 1),
        (Op.STEP, 2),
        (Op.STEP, 3),
        (Op.HELLO, 4),
        (Op.STEP, 5),
    ]
    assert {header.session for header in rank0.dial.sent} == {0x51}


def test_c8_a_new_session_starts_at_seq_1_again() -> None:
    """C8; §9.2: under a new id, on the same connection."""
    rank0 = connected()
    rank0.step()
    rank0.link.renew_session()
    assert not rank0.link.is_connected
    assert rank0.link.ready()
    hello = rank0.dial.sent[-1]
    assert (hello.op, hello.seq, hello.session) == (Op.HELLO, 1, 0x52)
    assert (rank0.link.epoch, rank0.link.n_connections) == (2, 1)


@pytest.mark.parametrize(("timeout_s", "expected"), [(0.001, 0.25), (0.05, 0.25), (0.4, 0.4)])
def test_c6_connect_and_hello_share_one_deadline(timeout_s: float, expected: float) -> None:
    """C6: max(timeout, 250 ms) for both together, so that the engine is not held for longer."""
    rank0 = Rank0(timeout_s)
    rank0.dial.takes_s = lambda: rank0.clock.wait(0.2)
    assert rank0.link.ready()
    assert rank0.dial.dialled[0].timeout_s == expected
    assert rank0.dial.exchanges[0].left_s == pytest.approx(expected - 0.2)


@pytest.mark.parametrize("error", [Broken("refused"), TimedOut("late"), NotInThisBuild("o1rdma")])
def test_c1_failed_connects_wait_1_2_4_to_30_seconds(error: Exception) -> None:
    """C1, §10: doubling, counted from the failed attempt."""
    rank0 = Rank0()
    rank0.dial.failures = [error] * 8
    assert not rank0.link.ready()
    assert [rank0.waits() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert rank0.dial.ops() == []


def test_c1_a_failed_connect_that_took_time_waits_from_its_end() -> None:
    """C1: "counted from the failed attempt", so that a slow failure is no spin."""
    rank0 = Rank0()
    rank0.dial.takes_s = lambda: rank0.clock.wait(5)
    rank0.dial.failures = [TimedOut("late")]
    assert not rank0.link.ready()
    assert not rank0.ready_after(0.9)
    assert len(rank0.dial.dialled) == 1
    assert rank0.ready_after(0.2)


def test_c1_the_first_reconnect_after_a_lost_connection_waits_a_second() -> None:
    """C1: "one deadline per reconnect cycle (~1 s)"."""
    rank0 = connected()
    rank0.spoil(Op.STEP, raising(Broken("gone")))
    rank0.step()
    assert not rank0.link.ready()
    assert rank0.waits() == 1
    assert rank0.link.epoch == 2


def test_a_hello_that_is_accepted_resets_the_backoff() -> None:
    """§10."""
    rank0 = Rank0()
    rank0.dial.failures = [Broken("refused")] * 3
    rank0.link.ready()
    assert [rank0.waits() for _ in range(3)] == [1, 2, 4]
    assert rank0.link.is_connected
    rank0.link.drop("a test")
    assert rank0.waits() == 1


def test_a_worker_that_accepts_and_never_answers_hello_does_not_reset_the_backoff() -> None:
    """§10: reset by a successful HELLO, not by a connection."""
    rank0 = Rank0()
    rank0.spoil(Op.HELLO, *[raising(TimedOut("late"))] * 4)
    rank0.link.ready()
    assert [rank0.waits() for _ in range(4)] == [1, 2, 4, 8]


def test_a_worker_that_is_gone_for_an_hour_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    rank0 = Rank0()
    rank0.dial.failures = [Broken("refused")] * 5
    with caplog.at_level(logging.WARNING):
        rank0.link.ready()
        for _ in range(4):
            rank0.waits()
    assert [record.getMessage() for record in caplog.records] == ["refused"]


# --- replies to HELLO -----------------------------------------------------------------------------


def with_body(code: int) -> Fault:
    """The reply's own body under this status (R8)."""

    def spoil(reply: bytes) -> bytes:
        header = parse_header(reply)
        return frame(header.op, header.seq, header.session, reply[HEADER_BYTES:], code)

    return spoil


@pytest.mark.parametrize("code", [*SAY_HELLO, *ROUND_FAILED, *UNKNOWN])
def test_c5_other_statuses_in_a_reply_to_hello_are_a_failed_connect(code: int) -> None:
    """C5: close, back off, retry; never fatal, never a STEP, never a spin; with a body or not."""
    rank0 = Rank0()
    rank0.spoil(Op.HELLO, status(code), with_body(code))
    assert not rank0.link.ready()
    assert rank0.dial.links[0].is_closed
    assert not rank0.link.disabled
    assert [rank0.waits(), rank0.waits()] == [1, 2]
    assert rank0.link.is_connected
    assert rank0.dial.ops() == [Op.HELLO] * 3


def body(data: bytes) -> Fault:
    """An OK with this body."""

    def spoil(reply: bytes) -> bytes:
        header = parse_header(reply)
        return frame(header.op, header.seq, header.session, data)

    return spoil


@pytest.mark.parametrize(
    "damage", [body(b""), body(bytes(127)), body(bytes(129)), raising(NotOurs("seq 0, expected 1"))]
)
def test_c5_damage_in_a_reply_to_hello_is_a_failed_connect(damage: Fault) -> None:
    """C5."""
    rank0 = Rank0()
    rank0.spoil(Op.HELLO, damage)
    assert not rank0.link.ready()
    assert rank0.dial.links[0].is_closed
    assert not rank0.link.disabled
    assert rank0.waits() == 1
    assert rank0.link.is_connected


def assert_never_sends_again(rank0: Rank0) -> None:
    n_sent, n_dialled = len(rank0.dial.sent), len(rank0.dial.dialled)
    for _ in range(50):
        assert not rank0.ready_after(10)
        assert rank0.step().outcome is Outcome.NEWER_CONNECTION
    assert (len(rank0.dial.sent), len(rank0.dial.dialled)) == (n_sent, n_dialled)
    assert all(link.is_closed for link in rank0.dial.links)


@pytest.mark.parametrize("spoilt", [status, with_body])
@pytest.mark.parametrize("code", FATAL)
def test_a_fatal_status_of_hello_disables_for_good_and_never_sends_again(
    code: FrameStatus, spoilt: Callable[[int], Fault]
) -> None:
    """§9.1: statuses 1, 2, 3 and 9; with the 128 bytes of R8 or without."""
    rank0 = Rank0()
    rank0.spoil(Op.HELLO, spoilt(code))
    assert not rank0.link.ready()
    assert rank0.link.disabled.startswith(code.name)
    assert "\n" not in rank0.link.disabled
    assert_never_sends_again(rank0)


def test_an_identity_that_differs_is_logged_with_both_digests(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """§9.1: "log both digests"; the worker's own refusal."""
    rank0 = Rank0()
    other = b"x" * 32
    rank0.dial.worker.own = HELLO._replace(drafter_identity=other)
    rank0.dial.worker.answer = HELLO_REPLY._replace(drafter_identity=other)
    assert not rank0.link.ready()
    assert rank0.link.disabled.startswith("IDENTITY_MISMATCH: drafter_identity")
    for digest in (HELLO.drafter_identity, other):
        assert digest.hex() in rank0.link.disabled
        assert digest.hex() in caplog.text


@pytest.mark.parametrize(
    ("field", "value", "verdict"),
    [
        ("drafter_identity", b"x" * 32, "IDENTITY_MISMATCH"),
        ("markov_identity", bytes(32), "IDENTITY_MISMATCH"),
        ("window", 9, "CONFIG_MISMATCH"),
        ("window", 0, "CONFIG_MISMATCH"),
        ("num_spec", 2, "CONFIG_MISMATCH"),
        ("proto", 2, "CONFIG_MISMATCH"),
        ("proto", 0, "CONFIG_MISMATCH"),
        ("capabilities", 0, "CONFIG_MISMATCH"),
        ("capabilities", CAN_MAINX_BF16, "CONFIG_MISMATCH"),
    ],
)
def test_c18_an_ok_with_other_terms_is_the_mismatch_that_it_should_have_been(
    field: str, value: object, verdict: str
) -> None:
    """C18."""
    rank0 = Rank0()
    rank0.dial.worker.answer = HELLO_REPLY._replace(**{field: value})  # type: ignore[arg-type]
    assert not rank0.link.ready()
    assert rank0.link.disabled.startswith(verdict)
    assert_never_sends_again(rank0)


@pytest.mark.parametrize("field", ["max_slots", "max_rows_per_step"])
def test_c17_a_worker_with_smaller_limits_disables_the_client_at_start(field: str) -> None:
    """C17; larger ones are none of its business."""
    rank0 = Rank0()
    limit = getattr(HELLO, field)
    rank0.dial.worker.answer = HELLO_REPLY._replace(**{field: limit - 1})
    assert not rank0.link.ready()
    assert rank0.link.disabled == (
        f"CONFIG_MISMATCH: {field} is {limit} here, at most {limit - 1} there"
    )
    assert_never_sends_again(rank0)
    assert differences(HELLO, HELLO_REPLY._replace(**{field: limit + 1})) == ""


def test_a_worker_without_margins_is_as_good() -> None:
    """R31: margins are not asked for then."""
    rank0 = Rank0()
    rank0.dial.worker.answer = HELLO_REPLY._replace(capabilities=1)
    assert rank0.link.ready()
    assert not rank0.link.has_margin


@pytest.mark.parametrize("name", [b"\xff\xfe", b"x\nERROR all is lost", b"\x1b[2J"])
def test_a_name_that_is_no_text_writes_no_line_of_its_own(
    name: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    rank0 = Rank0()
    rank0.dial.worker.answer = HELLO_REPLY._replace(worker_name=name)
    with caplog.at_level(logging.INFO):
        assert rank0.link.ready()
    (record,) = caplog.records
    assert record.getMessage().isprintable()


# --- replies to STEP ------------------------------------------------------------------------------


def test_a_good_reply_comes_back_parsed() -> None:
    exchange = connected().step()
    assert exchange.outcome is Outcome.DRAFTED
    assert exchange.reply is not None
    assert exchange.reply.head.step_id == 9
    assert not exchange.soils_all


@pytest.mark.parametrize("code", FATAL)
def test_a_fatal_status_of_step_disables_for_good(code: FrameStatus) -> None:
    """§9.1."""
    rank0 = connected()
    rank0.spoil(Op.STEP, status(code))
    assert rank0.step().outcome is Outcome.FRAME_ERROR
    assert rank0.link.disabled.startswith(code.name)
    assert_never_sends_again(rank0)


@pytest.mark.parametrize("code", SAY_HELLO)
def test_c3_hello_is_said_on_the_same_connection_before_the_next_step_without_waiting(
    code: FrameStatus,
) -> None:
    """C3; §9.1: all live slots resync."""
    rank0 = connected()
    rank0.spoil(Op.STEP, status(code))
    exchange = rank0.step()
    assert (exchange.outcome, exchange.soils_all) == (Outcome.FRAME_ERROR, True)
    assert not rank0.link.is_connected
    assert rank0.link.ready()
    rank0.step()
    assert rank0.dial.ops() == [Op.HELLO, Op.STEP, Op.HELLO, Op.STEP]
    assert (rank0.link.n_connections, rank0.link.epoch) == (1, 2)
    assert not rank0.dial.links[0].is_closed


def test_a_seq_that_stays_stale_after_hello_is_left_behind_with_its_session() -> None:
    """§7.5, R3: HELLO does not lower the worker's last seq, so only a new session gets anywhere."""
    rank0 = connected()
    rank0.spoil(Op.STEP, status(FrameStatus.STALE_SEQ), status(FrameStatus.STALE_SEQ))
    for _ in range(3):
        assert rank0.link.ready()
        exchange = rank0.step()
    assert exchange.outcome is Outcome.DRAFTED
    assert [(header.op, header.seq, header.session) for header in rank0.dial.sent[4:]] == [
        (Op.HELLO, 1, 0x52),
        (Op.STEP, 2, 0x52),
    ]
    assert rank0.link.n_connections == 1


def test_one_stale_seq_now_and_then_keeps_the_session() -> None:
    """§9.1: HELLO, resync."""
    rank0 = connected()
    for _ in range(3):
        rank0.spoil(Op.STEP, status(FrameStatus.STALE_SEQ))
        rank0.step()
        assert rank0.link.ready()
        assert rank0.step().outcome is Outcome.DRAFTED
    assert {header.session for header in rank0.dial.sent} == {0x51}


@pytest.mark.parametrize("code", ROUND_FAILED)
def test_c4_malformed_capacity_and_internal_keep_connection_and_session(code: FrameStatus) -> None:
    """C4: and only the slots of that STEP are in doubt (§9.1)."""
    rank0 = connected()
    rank0.spoil(Op.STEP, status(code))
    exchange = rank0.step()
    assert (exchange.outcome, exchange.soils_all) == (Outcome.FRAME_ERROR, False)
    assert code.name in exchange.reason
    assert rank0.link.is_connected
    assert rank0.link.ready()
    assert rank0.step().outcome is Outcome.DRAFTED
    assert rank0.dial.ops() == [Op.HELLO, Op.STEP, Op.STEP]


@pytest.mark.parametrize("code", UNKNOWN)
def test_c21_an_unknown_frame_status_is_a_refused_reply(code: int) -> None:
    """C21: drop, resync all."""
    rank0 = connected()
    rank0.spoil(Op.STEP, status(code))
    exchange = rank0.step()
    assert (exchange.outcome, exchange.soils_all) == (Outcome.BAD_REPLY, True)
    assert str(code) in exchange.reason
    assert rank0.dial.links[0].is_closed
    assert rank0.waits() == 1


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        (raising(TimedOut("late")), Outcome.TIMEOUT),
        (raising(Broken("gone")), Outcome.TRANSPORT),
        (raising(NotOurs("another seq")), Outcome.BAD_REPLY),
        (body(b""), Outcome.BAD_REPLY),
        (body(bytes(32)), None),
        (body(bytes(33)), Outcome.BAD_REPLY),
        (body(b"\xff" * 200), Outcome.BAD_REPLY),
    ],
)
def test_whatever_fails_drops_the_connection_and_leaves_every_slot_in_doubt(
    fault: Fault, outcome: Outcome | None
) -> None:
    """§7.4, §7.5. A body whose sizes agree goes on to the round, which judges its values."""
    rank0 = connected()
    rank0.spoil(Op.STEP, fault)
    exchange = rank0.step()
    if outcome is None:
        assert exchange.reply is not None
        return
    assert (exchange.outcome, exchange.soils_all) == (outcome, True)
    assert exchange.reply is None
    assert exchange.reason
    assert rank0.dial.links[0].is_closed
    assert not rank0.link.is_connected


def test_c2_the_drop_after_a_refused_reply_takes_the_same_backoff() -> None:
    """C2: one code path with transport failures."""
    rank0 = connected()
    rank0.step()
    rank0.link.refuse("entry 0: status 9")
    assert rank0.dial.links[0].is_closed
    assert rank0.link.last_error == "reply refused: entry 0: status 9"
    assert rank0.waits() == 1


def test_c22_stray_bytes_drop_the_connection_before_the_next_step() -> None:
    """C22: found by `ready`, so that nothing is sent behind them."""
    rank0 = connected()
    rank0.step()
    rank0.dial.links[0].has_strays = True
    assert not rank0.link.ready()
    assert rank0.dial.links[0].is_closed
    assert rank0.dial.ops() == [Op.HELLO, Op.STEP]
    assert rank0.waits() == 1


def test_c26_a_step_has_the_rounds_deadline_and_no_more() -> None:
    """C26: the carrier keeps it over all its calls (tests/unit/net)."""
    rank0 = Rank0(timeout_s=0.07)
    rank0.link.ready()
    rank0.clock.wait(10)
    rank0.step()
    assert rank0.dial.exchanges[1].timeout_s == 0.07
    assert rank0.dial.exchanges[1].left_s == pytest.approx(0.07)


# --- epochs ---------------------------------------------------------------------------------------


def test_entries_of_an_older_epoch_are_not_sent() -> None:
    """§10, v1.8: the worker may hold other windows by now."""
    rank0 = connected()
    rank0.link.drop("a test")
    assert rank0.ready_after(1)
    exchange = rank0.step(epoch=1)
    assert (exchange.outcome, exchange.soils_all) == (Outcome.NEWER_CONNECTION, False)
    assert exchange.reason == "built for connection 1, this is 2"
    assert rank0.dial.ops() == [Op.HELLO, Op.HELLO]


def test_only_an_accepted_hello_makes_an_epoch() -> None:
    rank0 = Rank0()
    rank0.spoil(Op.HELLO, status(FrameStatus.INTERNAL))
    rank0.dial.failures = [Broken("refused")]
    for epoch in (0, 0, 1, 1):
        rank0.ready_after(5)
        assert rank0.link.epoch == epoch


def test_nothing_is_sent_without_a_hello() -> None:
    rank0 = Rank0()
    assert rank0.step().outcome is Outcome.NEWER_CONNECTION
    rank0.spoil(Op.HELLO, status(FrameStatus.INTERNAL))
    rank0.link.ready()
    assert rank0.step().outcome is Outcome.NEWER_CONNECTION
    assert rank0.dial.ops() == [Op.HELLO]


def test_closing_twice_does_nothing() -> None:
    rank0 = connected()
    rank0.link.close()
    rank0.link.close()
    assert rank0.dial.links[0].is_closed
    assert not rank0.link.is_connected
