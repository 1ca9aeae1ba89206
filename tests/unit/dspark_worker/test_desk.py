"""The desk without a socket: every reading that it decides, and one entry's fault (§6, §7, §9)."""

from typing import Any

import pytest

from dspark_worker.drafter import Draft
from dsparkctl.contract.codes import (
    ALL_SLOTS,
    HAS_MARGIN,
    NEED_DRAFT,
    NEW_GEN,
    RESYNC,
    WANT_MARGIN,
    FrameStatus,
    Op,
)
from dsparkctl.contract.messages import frame, hello_frame, parse_hello_reply
from dsparkctl.contract.records import Hello
from tests.unit.dspark_worker.fake import (
    MAX_LEN,
    OWN,
    ROW_BYTES,
    SLOTS,
    VOCAB,
    N,
    Talk,
    W,
    entry,
    good_draft,
    step_frame,
)

OK, PARTIAL, STALE, BAD, INTERNAL = range(5)
NAN = float("nan")
INF = float("inf")


@pytest.fixture
def talk() -> Talk:
    """A client that has said HELLO in session 1."""
    talk = Talk()
    assert talk.hello() is FrameStatus.OK
    return talk


# --- PING and STATS (R1, R2, R13, R35) ------------------------------------------------------------


@pytest.mark.parametrize("admin", [False, True])
def test_r1_ping_and_stats_are_answered_before_hello_whatever_seq_and_session(admin: bool) -> None:
    talk = Talk()
    for op in (Op.PING, Op.STATS):
        for seq, session in ((0, 0), (5, 9), (5, 9), (2**64 - 1, 2**32 - 1)):
            header, body = talk.ask(frame(op, seq, session), admin=admin)
            assert header.status == 0
            assert (body == b"") == (op == Op.PING)


def test_r1_r2_ping_and_stats_leave_the_last_seq_alone(talk: Talk) -> None:
    talk.step(entry(n_rows=1))
    for op in (Op.PING, Op.STATS):
        talk.status(frame(op, 10**9, 1))
        assert talk.status(frame(op, 0, 1)) is FrameStatus.OK
    assert talk.step(entry(n_rows=1, first=1)).statuses[0].status == OK


def test_r13_a_body_of_ping_or_stats_is_ignored(talk: Talk) -> None:
    for op in (Op.PING, Op.STATS):
        assert talk.status(frame(op, 0, 0, b"x" * 5000)) is FrameStatus.OK


# --- sessions and seq (R2 to R6, R36) ------------------------------------------------------------


def test_r4_a_step_before_hello_has_no_session() -> None:
    assert Talk().step_status(entry(n_rows=1)) is FrameStatus.NO_SESSION


def test_r4_a_new_connection_has_no_session_until_it_says_hello(talk: Talk) -> None:
    talk.step(entry(n_rows=1))
    talk.desk.connected()
    assert talk.step_status(entry(n_rows=1, first=1)) is FrameStatus.NO_SESSION
    assert talk.reset(ALL_SLOTS) is FrameStatus.NO_SESSION
    assert talk.hello(seq=5) is FrameStatus.OK
    assert talk.results(entry(n_rows=1, first=1)) == [(OK, 2)]


def test_another_session_than_that_of_hello_is_none(talk: Talk) -> None:
    assert talk.step_status(entry(n_rows=1), session=2) is FrameStatus.NO_SESSION


@pytest.mark.parametrize("seq", [0, 1, 7])
def test_7_5_a_seq_that_is_not_above_the_last_applied_is_stale(talk: Talk, seq: int) -> None:
    assert talk.step_status(entry(n_rows=1), seq=7) is FrameStatus.OK
    assert talk.step_status(entry(n_rows=1, first=1), seq=seq) is FrameStatus.STALE_SEQ
    assert talk.reset(ALL_SLOTS, seq=seq) is FrameStatus.STALE_SEQ
    # Neither was applied.
    assert talk.step_status(entry(n_rows=1, first=1), seq=8) is FrameStatus.OK
    assert talk.stats()["slots"][0]["lo_pos"] == 0


def test_r2_reset_records_its_seq(talk: Talk) -> None:
    assert talk.reset(1, seq=9) is FrameStatus.OK
    assert talk.step_status(entry(n_rows=1), seq=9) is FrameStatus.STALE_SEQ


def test_r2_a_malformed_or_too_large_frame_records_no_seq(talk: Talk) -> None:
    malformed = step_frame(entry(0, n_rows=1), entry(0, n_rows=1), seq=50)
    too_large = step_frame(*(entry(i % SLOTS) for i in range(SLOTS + 1)), seq=50)
    assert talk.status(malformed) is FrameStatus.MALFORMED
    assert talk.status(too_large) is FrameStatus.CAPACITY
    assert talk.status(frame(Op.RESET, 50, 1, b"abc")) is FrameStatus.MALFORMED
    assert talk.stats()["last_seq"] == 0
    assert talk.step_status(entry(n_rows=1), seq=1) is FrameStatus.OK


def test_7_5_a_step_with_bad_entries_is_applied_and_records_its_seq(talk: Talk) -> None:
    assert talk.step_status(entry(n_rows=W + 1), seq=3) is FrameStatus.OK
    assert talk.step_status(entry(n_rows=1), seq=3) is FrameStatus.STALE_SEQ


def test_r3_hellos_seq_is_not_checked_and_the_same_session_keeps_last_seq(talk: Talk) -> None:
    talk.step_status(entry(n_rows=1), seq=40)
    assert talk.hello(seq=1) is FrameStatus.OK
    assert talk.step_status(entry(n_rows=1, first=1), seq=40) is FrameStatus.STALE_SEQ
    assert talk.hello(seq=10**6) is FrameStatus.OK
    assert talk.step_status(entry(n_rows=1, first=1), seq=41) is FrameStatus.OK


def test_6_2_the_same_session_keeps_windows_and_generations(talk: Talk) -> None:
    talk.step(entry(n_rows=3, generation=8))
    talk.hello()
    assert talk.results(entry(n_rows=1, first=3, generation=8)) == [(OK, 4)]
    assert talk.results(entry(n_rows=1, first=4, generation=7)) == [(STALE, 0)]


def test_6_2_r3_r23_a_new_session_drops_windows_generations_and_seq(talk: Talk) -> None:
    talk.step_status(entry(n_rows=3, generation=8), seq=40)
    assert talk.hello(session=2) is FrameStatus.OK
    slots = talk.stats()["slots"]
    assert slots == [
        {"slot": i, "generation": None, "lo_pos": None, "hi_pos": None} for i in range(SLOTS)
    ]
    assert talk.step_status(entry(n_rows=1), seq=41, session=1) is FrameStatus.NO_SESSION
    assert talk.step_status(entry(generation=0x80000005), seq=1, session=2) is FrameStatus.OK


@pytest.mark.parametrize("refused_session", [1, 2])
def test_r5_a_refused_hello_keeps_the_old_session_but_unbinds(
    talk: Talk, refused_session: int
) -> None:
    talk.step(entry(n_rows=2))
    refused = talk.hello(OWN._replace(window=W + 1), session=refused_session)
    assert refused is FrameStatus.CONFIG_MISMATCH
    assert talk.step_status(entry(n_rows=1, first=2)) is FrameStatus.NO_SESSION
    assert talk.hello() is FrameStatus.OK
    assert talk.results(entry(n_rows=1, first=2)) == [(OK, 3)]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"proto_min": 2, "proto_max": 3}, FrameStatus.BAD_VERSION),
        ({"proto_min": 0, "proto_max": 0}, FrameStatus.BAD_VERSION),
        ({"proto_min": 0, "proto_max": 9}, FrameStatus.OK),
        ({"drafter_identity": bytes(32)}, FrameStatus.IDENTITY_MISMATCH),
        ({"markov_identity": bytes(32)}, FrameStatus.IDENTITY_MISMATCH),
        ({"num_spec": N + 1}, FrameStatus.CONFIG_MISMATCH),
        ({"window": W - 1}, FrameStatus.CONFIG_MISMATCH),
        ({"hidden": 9}, FrameStatus.CONFIG_MISMATCH),
        ({"n_taps": 2}, FrameStatus.CONFIG_MISMATCH),
        ({"tap_layer_ids": (6, 0, 0, 0)}, FrameStatus.CONFIG_MISMATCH),
        ({"tap_layer_ids": (5, 0, 0, 1)}, FrameStatus.CONFIG_MISMATCH),
        ({"payload_kind": 2}, FrameStatus.CONFIG_MISMATCH),
        ({"payload_kind": 0}, FrameStatus.CONFIG_MISMATCH),
        ({"row_bytes": 32}, FrameStatus.CONFIG_MISMATCH),
        ({"noise_token_id": 8}, FrameStatus.CONFIG_MISMATCH),
        ({"vocab_size": VOCAB + 1}, FrameStatus.CONFIG_MISMATCH),
        ({"sample_mode": 2}, FrameStatus.CONFIG_MISMATCH),
        ({"max_model_len": MAX_LEN + 1}, FrameStatus.CONFIG_MISMATCH),
        ({"max_slots": SLOTS + 1}, FrameStatus.CONFIG_MISMATCH),
        ({"max_rows_per_step": SLOTS * W + 1}, FrameStatus.CONFIG_MISMATCH),
        ({"max_model_len": 1, "max_slots": 1, "max_rows_per_step": 1}, FrameStatus.OK),
        ({"tp_size": 0xFFFFFFFF, "reserved": 7, "client_name": b"\xff\n"}, FrameStatus.OK),
    ],
)
def test_6_2_r6_r7_what_each_field_of_hello_leads_to(
    change: dict[str, Any], expected: FrameStatus
) -> None:
    assert Talk().hello(OWN._replace(**change)) is expected


def test_r7_session_0_is_malformed() -> None:
    assert Talk().hello(session=0) is FrameStatus.MALFORMED


def test_r8_r9_only_hellos_error_replies_have_a_body_of_128_bytes(talk: Talk) -> None:
    wrong = OWN._replace(drafter_identity=bytes(32))
    _, body = talk.ask(hello_frame(1, 1, wrong))
    assert parse_hello_reply(body).drafter_identity == OWN.drafter_identity
    assert len(talk.ask(frame(Op.HELLO, 1, 1, b"short"))[1]) == 128
    for message in (
        step_frame(entry(), seq=5),  # NO_SESSION, after the refused HELLO
        frame(Op.RESET, 5, 1, b"abc"),
        frame(6, 5, 1, b"xyz"),
    ):
        header, body = talk.ask(message)
        assert header.status != 0
        assert body == b""


def test_6_2_the_hello_reply_states_the_workers_terms(talk: Talk) -> None:
    reply = parse_hello_reply(talk.ask(hello_frame(1, 1, OWN))[1])
    assert (reply.proto, reply.max_slots, reply.max_rows_per_step) == (1, SLOTS, SLOTS * W)
    assert (reply.capabilities, reply.window, reply.num_spec) == (0b101, W, N)
    assert (reply.drafter_identity, reply.markov_identity) == (b"d" * 32, b"m" * 32)


def version_2(message: bytes) -> bytes:
    return message[:4] + b"\x02\x00" + message[6:]


def test_r36_the_order_of_frame_errors(talk: Talk) -> None:
    """Version, op, session, seq, body, capacity: of two faults the earlier one is told."""
    bad_session = 99
    talk.step_status(entry(n_rows=1), seq=10)
    twice = (entry(0), entry(0))
    too_many = tuple(entry(i % SLOTS) for i in range(SLOTS + 1))
    for message, expected in (
        (version_2(frame(99, 0, bad_session)), FrameStatus.BAD_VERSION),
        (version_2(step_frame(entry(), seq=0, session=bad_session)), FrameStatus.BAD_VERSION),
        (frame(99, 0, bad_session), FrameStatus.UNSUPPORTED_OP),
        (step_frame(entry(), seq=0, session=bad_session), FrameStatus.NO_SESSION),
        (step_frame(*twice, seq=9), FrameStatus.STALE_SEQ),
        (step_frame(*too_many, seq=9), FrameStatus.STALE_SEQ),
        (frame(Op.STEP, 11, 1, b""), FrameStatus.MALFORMED),
        (step_frame(*too_many, seq=11), FrameStatus.CAPACITY),
        (step_frame(*twice, seq=11), FrameStatus.MALFORMED),
    ):
        assert talk.status(message) is expected


def test_r36_the_order_within_hello() -> None:
    """Body size, session, proto, identity, config."""
    talk = Talk()
    wrong: Hello = OWN._replace(window=1, drafter_identity=bytes(32), proto_min=2, proto_max=2)
    assert talk.status(frame(Op.HELLO, 1, 0, b"x")) is FrameStatus.MALFORMED
    assert talk.hello(wrong, session=0) is FrameStatus.MALFORMED
    assert talk.hello(wrong) is FrameStatus.BAD_VERSION
    assert talk.hello(wrong._replace(proto_min=1)) is FrameStatus.IDENTITY_MISMATCH
    assert talk.hello(OWN._replace(window=1)) is FrameStatus.CONFIG_MISMATCH


def test_r11_too_many_rows_are_capacity() -> None:
    talk = Talk(OWN._replace(max_rows_per_step=W))
    assert talk.hello(OWN._replace(max_rows_per_step=W)) is FrameStatus.OK
    entries = (entry(0, n_rows=W), entry(1, n_rows=1))
    assert talk.step_status(*entries) is FrameStatus.CAPACITY
    assert talk.results(entry(0, n_rows=W), entry(1)) == [(OK, W), (OK, 0)]


@pytest.mark.parametrize("slots", [(0, 0), (0, SLOTS), (255, 1)])
def test_r10_a_slot_named_twice_or_out_of_range_applies_nothing(
    talk: Talk, slots: tuple[int, int]
) -> None:
    entries = [entry(slot, n_rows=1) for slot in slots]
    assert talk.step_status(*entries) is FrameStatus.MALFORMED
    assert all(slot["generation"] is None for slot in talk.stats()["slots"])


def test_r12_rows_that_do_not_sum_up_and_r13_bytes_behind_them_are_malformed(talk: Talk) -> None:
    good = bytearray(step_frame(entry(n_rows=2), seq=1))
    for n_rows in (1, 3):
        good[32 + 12 : 32 + 16] = n_rows.to_bytes(4, "little")
        assert talk.status(bytes(good)) is FrameStatus.MALFORMED
    message = step_frame(entry(n_rows=2), seq=1) + bytes(ROW_BYTES)
    longer = message[:20] + (len(message) - 32).to_bytes(4, "little") + message[24:]
    assert talk.status(longer) is FrameStatus.MALFORMED


def test_r14_r15_without_rows_offset_row_bytes_and_first_pos_say_nothing(talk: Talk) -> None:
    message = bytearray(step_frame(entry(first=-9, anchor=0), seq=1))
    message[32 + 16 : 32 + 24] = b"\xff" * 8
    header, _ = talk.ask(bytes(message))
    assert header.status == FrameStatus.OK


def test_r27_unknown_flags_and_a_requests_own_status_are_ignored(talk: Talk) -> None:
    message = bytearray(step_frame(entry(n_rows=1, flags=0xF8 | NEED_DRAFT), seq=1, flags=0xFFFE))
    message[24:32] = b"\x07\0\0\0\xff\xff\xff\xff"
    header, body = talk.ask(bytes(message))
    assert header.status == FrameStatus.OK
    assert int.from_bytes(body[12:16], "little") == 0  # no margins


# --- RESET (R24, R37, R39) ------------------------------------------------------------------------


def test_6_4_reset_discards_exactly_the_windows_of_its_mask(talk: Talk) -> None:
    talk.step(*(entry(slot, n_rows=3) for slot in range(SLOTS)))
    assert talk.reset(0b101) is FrameStatus.OK
    held = [slot["hi_pos"] for slot in talk.stats()["slots"]]
    assert held == [None, 2, None]
    talk.reset(0xFFFFFFF8)  # no slot of ours
    assert talk.stats()["slots"][1]["hi_pos"] == 2
    talk.reset(ALL_SLOTS)
    assert talk.stats()["slots"][1]["hi_pos"] is None


def test_r24_reset_keeps_the_generations(talk: Talk) -> None:
    talk.step(entry(n_rows=3, generation=8))
    talk.reset(ALL_SLOTS)
    assert talk.results(entry(n_rows=1, first=3, generation=7)) == [(STALE, 0)]
    assert talk.results(entry(n_rows=1, first=3, generation=8)) == [(PARTIAL, 1)]


def test_r39_reset_through_admin_needs_no_session_and_is_no_part_of_its_seq(talk: Talk) -> None:
    talk.step(entry(n_rows=3))
    assert talk.reset(ALL_SLOTS, seq=0, admin=True) is FrameStatus.OK
    assert talk.stats()["last_seq"] == 1
    assert talk.results(entry(n_rows=1, first=3)) == [(PARTIAL, 1)]


def test_r37_admin_serves_ping_stats_and_reset_only(talk: Talk) -> None:
    talk.desk.connected()
    for message in (hello_frame(1, 5, OWN), step_frame(entry(), seq=9), frame(6, 0, 0)):
        assert talk.status(message, admin=True) is FrameStatus.UNSUPPORTED_OP
    assert talk.stats()["session"] == 1


# --- windows through the desk (R16 to R23, R25, R28, R30) -----------------------------------------


def test_r16_an_anchor_below_the_window_empties_it_and_counts_0_rows(talk: Talk) -> None:
    talk.step(entry(n_rows=W, first=10, flags=0))
    assert talk.results(entry(anchor=5)) == [(BAD, 0)]
    assert talk.stats()["slots"][0]["hi_pos"] is None


def test_r17_an_empty_window_at_anchor_0_drafts_from_the_block_alone(talk: Talk) -> None:
    assert talk.results(entry(anchor=0)) == [(OK, 0)]
    assert talk.drafter.asked[0][0][:3] == (0, 0, 0)
    assert talk.results(entry(anchor=1)) == [(BAD, 0)]


def test_r18_a_negative_anchor_without_rows_is_a_bad_entry(talk: Talk) -> None:
    assert talk.results(entry(anchor=-1), entry(1, anchor=-(2**63))) == [(BAD, 0), (BAD, 0)]


def test_r19_a_short_window_is_ok_without_need_draft(talk: Talk) -> None:
    assert talk.results(entry(n_rows=1, first=9, flags=0)) == [(OK, 1)]
    assert talk.drafter.asked == []
    assert talk.results(entry(anchor=10)) == [(PARTIAL, 1)]


def test_r20_r21_a_stale_entry_echoes_the_requests_generation_with_0_rows(talk: Talk) -> None:
    talk.step(entry(n_rows=2, generation=8))
    status = talk.step(entry(n_rows=1, first=2, generation=7, flags=NEED_DRAFT | NEW_GEN))
    assert status.statuses == [(STALE, 0, 7)]
    assert talk.results(entry(n_rows=1, first=2, generation=8)) == [(OK, 3)]


def test_r22_a_bad_entry_has_adopted_its_generation_and_emptied_the_window(talk: Talk) -> None:
    talk.step(entry(n_rows=2, generation=8))
    assert talk.results(entry(n_rows=W + 1, first=2, generation=9)) == [(BAD, 0)]
    assert talk.results(entry(n_rows=1, first=2, generation=8)) == [(STALE, 0)]
    assert talk.results(entry(n_rows=1, first=2, generation=9)) == [(PARTIAL, 1)]


def test_r22_a_bad_entry_of_the_same_generation_keeps_the_window(talk: Talk) -> None:
    talk.step(entry(n_rows=2))
    assert talk.results(entry(n_rows=W + 1, first=2)) == [(BAD, 0)]
    assert talk.results(entry(n_rows=1, first=2)) == [(OK, 3)]


def test_r25_a_distance_of_half_the_range_is_older(talk: Talk) -> None:
    talk.step(entry(n_rows=1, generation=5))
    assert talk.results(entry(n_rows=1, generation=5 + 2**31)) == [(STALE, 0)]
    assert talk.results(entry(n_rows=1, generation=4 + 2**31)) == [(OK, 1)]


@pytest.mark.parametrize("token", [-1, VOCAB, 2**31 - 1, -(2**31)])
def test_r28_an_anchor_token_outside_the_vocabulary_is_a_bad_entry(talk: Talk, token: int) -> None:
    assert talk.results(entry(n_rows=1, token=token), entry(1, n_rows=1)) == [(BAD, 0), (OK, 1)]
    assert talk.results(entry(n_rows=1, token=token, flags=0)) == [(OK, 1)]
    assert all(r.slot == 1 for asked in talk.drafter.asked for r in asked)


def test_r30_a_block_may_start_at_max_model_len_and_not_behind(talk: Talk) -> None:
    at_end = entry(n_rows=W, first=MAX_LEN - W)
    assert talk.results(at_end) == [(OK, W)]
    assert talk.results(entry(n_rows=1, first=MAX_LEN)) == [(BAD, 0)]
    assert talk.results(entry(anchor=MAX_LEN)) == [(OK, W)]
    assert talk.results(entry(1, anchor=2**63 - 1)) == [(BAD, 0)]


def test_r6_the_clients_max_model_len_is_the_clamp_and_the_bound(talk: Talk) -> None:
    talk.hello(OWN._replace(max_model_len=7))
    talk.step(entry(n_rows=4, first=3, flags=NEED_DRAFT))
    assert talk.drafter.max_model_len == 7
    assert talk.results(entry(n_rows=1, first=7)) == [(BAD, 0)]


def test_rows_reach_the_drafter_under_their_own_entry_and_position(talk: Talk) -> None:
    talk.step(entry(2, n_rows=2, first=5), entry(0, n_rows=W + 1), entry(1, n_rows=1))
    rows = {key: row[0] for key, row in talk.drafter.rows.items()}
    # Entry 0's rows, though refused, still take up their place in the block.
    assert rows == {(2, 5): 1, (2, 6): 2, (1, 0): 3 + W + 1}


def test_7_2_5_the_window_that_is_asked_for_is_that_of_the_rows(talk: Talk) -> None:
    talk.step(entry(n_rows=3, flags=0))
    talk.step(entry(n_rows=3, first=3))
    assert talk.drafter.asked[-1] == [(0, 2, 6, 1, N)]
    talk.step(entry(n_rows=1, first=4))  # a rollback to 4; the ring has forgotten 0 and 1
    assert talk.drafter.asked[-1] == [(0, 2, 5, 1, N)]


# --- the reply (§6.3, R26, R31) -------------------------------------------------------------------


def test_r31_margins_come_only_when_asked_for(talk: Talk) -> None:
    plain = talk.step(entry(n_rows=1))
    assert (plain.head.reply_flags, plain.margin) == (0, None)
    asked = talk.step(entry(n_rows=1, first=1, n_out=2), flags=WANT_MARGIN)
    assert (asked.head.reply_flags, asked.margin) == (HAS_MARGIN, (1.5, 1.5, 0.0))


@pytest.mark.parametrize(("n_out", "n"), [(0, N), (1, 1), (2, 2), (N, N), (N + 1, N), (255, N)])
def test_r26_n_out_above_n_is_n_and_the_tail_is_zeros(talk: Talk, n_out: int, n: int) -> None:
    reply = talk.step(entry(n_rows=1, n_out=n_out))
    assert talk.drafter.asked[0][0].n_out == n
    assert reply.draft_ids == ((7, 8, 9)[:n] + (0,) * (N - n))
    assert reply.confidence == (0.5,) * n + (0.0,) * (N - n)


def test_6_3_entries_without_need_draft_or_with_an_error_are_zeros(talk: Talk) -> None:
    reply = talk.step(
        entry(0, n_rows=1, flags=0), entry(1, n_rows=W + 1), entry(2, n_rows=1), flags=WANT_MARGIN
    )
    assert reply.draft_ids == (*[0] * 2 * N, 7, 8, 9)
    assert reply.confidence == (*[0.0] * 2 * N, *[0.5] * N)
    assert reply.margin == (*[0.0] * 2 * N, *[1.5] * N)


def test_6_3_step_id_is_echoed(talk: Talk) -> None:
    _, body = talk.ask(step_frame(entry(n_rows=1), seq=1, step_id=2**64 - 1))
    assert body[:8] == b"\xff" * 8


@pytest.mark.parametrize(("step_s", "expected_us"), [(-1.0, 0), (0.0, 0), (5000.0, 2**32 - 1)])
def test_6_3_times_stay_in_their_unsigned_fields_whatever_the_clock_does(
    talk: Talk, step_s: float, expected_us: int
) -> None:
    talk.clock.step_s = step_s
    head = talk.step(entry(n_rows=1)).head
    assert (head.worker_us, head.recv_to_send_us) == (expected_us, expected_us)


# --- one entry's fault (R29) ----------------------------------------------------------------------


def three(**kwargs: Any) -> tuple[Any, ...]:
    return tuple(entry(slot, n_rows=1, **kwargs) for slot in range(3))


def test_r29_a_batch_that_raises_is_asked_again_one_by_one(talk: Talk) -> None:
    talk.drafter.draft_raises = {1}
    assert talk.results(*three()) == [(OK, 1), (INTERNAL, 0), (OK, 1)]
    assert [[r.slot for r in asked] for asked in talk.drafter.asked] == [[0, 1, 2], [0], [1], [2]]
    # The rows were stored: nothing but the draft has failed.
    talk.drafter.draft_raises = set()
    assert talk.results(*three(first=1)) == [(OK, 2)] * 3


def test_r29_a_fault_value_is_internal_for_its_entry_alone(talk: Talk) -> None:
    talk.drafter.draft_faults = {0}
    talk.drafter.append_faults = {2}
    assert talk.results(*three()) == [(INTERNAL, 0), (OK, 1), (INTERNAL, 0)]
    assert [r.slot for r in talk.drafter.asked[0]] == [0, 1]
    # A row that is not finite holds its position (R29).
    assert [slot["hi_pos"] for slot in talk.stats()["slots"]] == [0, 0, 0]


def test_r29_an_append_that_raises_empties_that_slot_only(talk: Talk) -> None:
    talk.step(*three())
    talk.drafter.append_raises = {1}
    assert talk.results(*three(first=1)) == [(OK, 2), (INTERNAL, 0), (OK, 2)]
    assert [slot["hi_pos"] for slot in talk.stats()["slots"]] == [1, None, 1]
    talk.drafter.append_raises = set()
    assert talk.results(*three(first=2)) == [(OK, 3), (PARTIAL, 1), (OK, 3)]
    # A resync heals it, under the same generation (§7.4).
    resync = entry(1, n_rows=4, flags=NEED_DRAFT | NEW_GEN | RESYNC)
    assert talk.results(resync) == [(OK, 4)]


def test_r29_a_drafter_that_gives_too_few_answers_fails_the_silent_entry_alone(talk: Talk) -> None:
    talk.drafter.draft_forgets = {1}
    assert talk.results(*three()) == [(OK, 1), (INTERNAL, 0), (OK, 1)]
    talk.drafter.draft_forgets = set()
    talk.drafter.append_forgets = {2}
    assert talk.results(*three(first=1)) == [(OK, 2), (OK, 2), (INTERNAL, 0)]


@pytest.mark.parametrize(
    "draft",
    [
        good_draft(N)._replace(ids=[1, 2, VOCAB]),
        good_draft(N)._replace(ids=[-1, 2, 3]),
        good_draft(N)._replace(ids=[1, 2]),
        good_draft(N)._replace(ids=[1, 2, 2**40]),
        good_draft(N)._replace(confidence=[0.5, NAN, 0.5]),
        good_draft(N)._replace(confidence=[0.5, 1.01, 0.5]),
        good_draft(N)._replace(confidence=[0.5] * (N + 1)),
        good_draft(N)._replace(margin=[1.0, INF, 1.0]),
        good_draft(N)._replace(margin=[1.0, 1e300, 1.0]),
        good_draft(N)._replace(margin=[1.0, -1.0, 1.0]),
        good_draft(N)._replace(margin=[]),
    ],
)
def test_r29_a_draft_that_rank_0_would_refuse_never_voids_the_reply(
    talk: Talk, draft: Draft
) -> None:
    talk.drafter.draft_says = {1: draft}
    reply = talk.step(*three(), flags=WANT_MARGIN)
    assert [s.status for s in reply.statuses] == [OK, INTERNAL, OK]
    assert reply.draft_ids == (7, 8, 9, 0, 0, 0, 7, 8, 9)


def test_6_3_a_draft_that_goes_on_behind_n_out_is_internal(talk: Talk) -> None:
    talk.drafter.draft_says = {1: good_draft(N)}
    assert talk.results(*three(n_out=2)) == [(OK, 1), (INTERNAL, 0), (OK, 1)]


# --- STATS (R35) ----------------------------------------------------------------------------------


def test_r35_every_key_moves_by_one_per_event(talk: Talk) -> None:
    before = talk.stats()
    talk.drafter.draft_faults = {2}
    talk.step(entry(0, n_rows=2, first=3), entry(1, n_rows=W + 1), entry(2, n_rows=1))
    talk.step(entry(0, n_rows=1, first=5, generation=0, flags=RESYNC | NEED_DRAFT))
    after = talk.stats()
    moved = {key: after[key] - before[key] for key in before if type(before[key]) is int}
    assert {key: n for key, n in moved.items() if n} == {
        "steps": 2,
        "rows": 2,
        "drafted_requests": 1,
        "partial_windows": 1,
        "bad_entries": 1,
        "internal_entries": 1,
        "stale_generation": 1,
        "resyncs": 1,
        "last_seq": 2,
    }


def test_r35_a_refused_frame_is_counted_once_under_its_status(talk: Talk) -> None:
    talk.step_status(entry(), seq=0)
    talk.status(frame(17, 0, 0))
    talk.hello(OWN._replace(window=1))
    talk.step_status(entry())
    assert talk.stats()["frames_refused"] == {
        "STALE_SEQ": 1,
        "UNSUPPORTED_OP": 1,
        "CONFIG_MISMATCH": 1,
        "NO_SESSION": 1,
    }
    assert talk.stats()["steps"] == 0


def test_an_exception_in_a_route_is_answered_with_internal(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(talk.desk, "snapshot", lambda: 1 / 0)
    header, body = talk.ask(frame(Op.STATS, 0, 0))
    assert (header.status, body) == (FrameStatus.INTERNAL, b"")
