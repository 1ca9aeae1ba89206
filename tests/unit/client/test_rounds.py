"""Whole rounds of rank 0 (§4.2, §6.3, §7.4, §9, §10) against a worker that a test spoils."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dsparkctl.client.fallback import Outcome
from dsparkctl.client.rounds import Answer
from dsparkctl.client.switch import Switch
from dsparkctl.contract.codes import (
    NEED_DRAFT,
    NEW_GEN,
    RESYNC,
    WANT_MARGIN,
    EntryStatus,
    FrameStatus,
    Op,
)
from dsparkctl.contract.messages import StepReply
from dsparkctl.net.ask import NotOurs
from dsparkctl.net.transport import Broken, TimedOut
from dsparkctl.state.breaker import State
from dsparkctl.state.ledger import Part, Sampled
from dsparkctl.state.n_out import Caps, Range
from tests.unit.client.fakes import (
    HELLO_REPLY,
    SLOTS,
    VOCAB,
    Ask,
    Bench,
    Fault,
    N,
    W,
    batch,
    edited,
    entry_status,
    fallbacks,
    raising,
    row,
    status,
)

ALL = NEW_GEN | NEED_DRAFT | RESYNC
NAN = float("nan")


def running(**given: Any) -> Bench:
    """Slots 0 to 2 have had one good round each, and are clean."""
    bench = Bench(**given)
    bench.run(Ask("a", 0, 0, 6), Ask("b", 1, 0, 10), Ask("c", 2, 0, 9))
    assert bench.dirty() == {3}  # nobody owns it yet
    return bench


A, B = Ask("a", 0, 6, 2), Ask("b", 1, 10, 1)


def assert_no_draft(answer: Answer, n_requests: int) -> None:
    """§10: drafts 0, confidences 0.0, never the last round's."""
    assert answer.draft_ids == [0] * n_requests * N
    assert answer.confidence == [0.0] * n_requests * N
    assert answer.margin is None
    assert answer.reason


def state(bench: Bench) -> State:
    return bench.rounds.breaker.state


def n_steps(bench: Bench) -> int:
    return bench.dial.ops().count(Op.STEP)


# --- a good round ---------------------------------------------------------------------------------


def test_a_round_that_works_gives_the_workers_drafts() -> None:
    """§4.2."""
    bench = Bench()
    answer = bench.run(Ask("a", 0, 0, 6), Ask("b", 1, 0, 3, needs_draft=False))
    assert answer.outcome is Outcome.DRAFTED
    assert answer.draft_ids == (7, 8, 9, 0, 0, 0)
    assert answer.confidence == (0.5, 0.5, 0.5, 0.0, 0.0, 0.0)
    assert answer.reason == ""
    assert bench.counts["drafted"] == 1
    assert bench.counts["drafted_requests"] == 1
    assert not fallbacks(bench.counts)


def test_the_first_step_carries_the_kept_rows_of_every_request() -> None:
    """§4.3, §6.3."""
    bench = Bench()
    bench.run(Ask("a", 3, 0, 20), Ask("b", 1, 2, 4, n_rejected=1, token=42))
    (seen,) = bench.worker.steps
    assert [entry.slot for entry in seen.entries] == [3, 1]
    assert seen.rows[0] == [row("a", pos) for pos in range(20 - W, 20)]
    assert seen.rows[1] == [row("b", pos) for pos in range(2, 5)]
    assert (seen.entries[1].anchor_pos, seen.entries[1].anchor_token) == (5, 42)
    assert [entry.req_flags for entry in seen.entries] == [NEW_GEN | NEED_DRAFT] * 2


def test_after_every_good_round_the_worker_holds_what_the_ring_holds() -> None:
    """§7.3."""
    bench = Bench()
    for pos in range(0, 40, 2):
        bench.run(Ask("a", 0, pos, 3, n_rejected=1, k_window=2))
        assert bench.worker.held(0) == bench.owned(0)
    assert len(bench.owned(0)) == W


def test_appends_alone_are_no_drafts() -> None:
    """§10, v1.8: neutral."""
    bench = Bench()
    answer = bench.run(Ask("a", 0, 0, 6, needs_draft=False))
    assert answer.outcome is Outcome.APPENDED
    assert not any(answer.draft_ids)
    assert bench.counts["appended"] == 1


def test_a_step_without_requests_sends_nothing() -> None:
    """§6.3: n_req is at least 1."""
    bench = Bench()
    answer = bench.run()
    assert (answer.outcome, [*answer.draft_ids]) == (Outcome.APPENDED, [])
    assert n_steps(bench) == 0


def test_n_out_is_the_schedules_cap() -> None:
    """§6.3, v1.3."""
    bench = Bench(caps=Caps((Range(1, 1, 3), Range(2, 4, 2)), ""))
    answer = bench.run(Ask("a", 0, 0, 6), Ask("b", 1, 0, 3))
    assert [entry.n_out for entry in bench.worker.steps[0].entries] == [2, 2]
    assert answer.draft_ids == (7, 8, 0, 4, 5, 0)


@pytest.mark.parametrize(("wants", "can"), [(True, True), (True, False), (False, True)])
def test_margins_are_asked_for_only_where_the_worker_can_send_them(wants: bool, can: bool) -> None:
    """R31."""
    bench = Bench(want_margin=wants)
    bench.worker.answer = HELLO_REPLY._replace(capabilities=5 if can else 1)
    answer = bench.run(Ask("a", 0, 0, 6))
    assert bench.worker.steps[0].head.step_flags == (WANT_MARGIN if wants and can else 0)
    assert (answer.margin is not None) is (wants and can)


def test_c9_step_id_counts_engine_rounds_sent_or_not() -> None:
    """C9: gaps show the skipped ones."""
    bench = Bench(trip=1, cooldown=3)
    bench.run(Ask("a", 0, 0, 6))
    bench.spoil(status(FrameStatus.INTERNAL))
    for pos in range(6, 14):
        bench.run(Ask("a", 0, pos, 1))
    assert [seen.head.step_id for seen in bench.worker.steps] == [1, 2, 6, 7, 8, 9]


# --- frame statuses -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code", [FrameStatus.MALFORMED, FrameStatus.CAPACITY, FrameStatus.INTERNAL]
)
def test_c4_c16_a_failed_frame_resyncs_the_slots_of_that_step_and_no_others(
    code: FrameStatus,
) -> None:
    """C4, C16; §9.1: the connection is kept."""
    bench = running()
    bench.spoil(status(code))
    assert_no_draft(bench.run(A, B), 2)
    assert bench.dirty() == {0, 1, 3}
    assert fallbacks(bench.counts) == {"fallback_frame_error": 1}
    bench.run(Ask("a", 0, 8, 1), Ask("c", 2, 9, 1))
    seen = bench.worker.steps[-1]
    assert (seen.entry(0).req_flags, seen.entry(2).req_flags) == (ALL, NEED_DRAFT)
    assert seen.rows[0] == [row("a", pos) for pos in range(1, 9)]
    assert bench.worker.held(0) == bench.owned(0)
    assert bench.dirty() == {1, 3}
    assert bench.link.n_connections == 1


@pytest.mark.parametrize("code", [FrameStatus.NO_SESSION, FrameStatus.STALE_SEQ])
def test_c3_a_lost_session_is_greeted_again_and_every_slot_resyncs(code: FrameStatus) -> None:
    """C3; §7.4, §9.1: on the same connection, in the next round."""
    bench = running()
    bench.spoil(status(code))
    assert_no_draft(bench.run(A), 1)
    assert bench.dirty() == {0, 1, 2, 3}
    assert bench.dial.ops() == [Op.HELLO, Op.STEP, Op.STEP]
    assert bench.run(Ask("a", 0, 8, 1), B).outcome is Outcome.DRAFTED
    assert bench.dial.ops()[3:] == [Op.HELLO, Op.STEP]
    assert [entry.req_flags for entry in bench.worker.steps[-1].entries] == [ALL, ALL]
    assert bench.worker.held(0) == bench.owned(0)
    assert bench.worker.held(1) == bench.owned(1)
    assert bench.link.n_connections == 1


@pytest.mark.parametrize(
    "code",
    [
        FrameStatus.BAD_VERSION,
        FrameStatus.IDENTITY_MISMATCH,
        FrameStatus.CONFIG_MISMATCH,
        FrameStatus.UNSUPPORTED_OP,
    ],
)
def test_c25_a_disabled_client_lets_the_engine_go_on_without_drafts(code: FrameStatus) -> None:
    """C25; §9.1: nothing is sent any more, and nothing raises."""
    bench = running()
    bench.spoil(status(code))
    assert bench.run(A).outcome is Outcome.FRAME_ERROR
    for pos in range(8, 40):
        bench.clock.wait(40)
        answer = bench.run(Ask("a", 0, pos, 1))
        assert answer.outcome is Outcome.DISABLED
        assert_no_draft(answer, 1)
        assert code.name in answer.reason
    assert n_steps(bench) == 2
    assert fallbacks(bench.counts) == {"fallback_frame_error": 1, "fallback_disabled": 32}


def test_c25_a_client_that_hello_disabled_lets_the_engine_go_on_too() -> None:
    """C25."""
    bench = Bench()
    bench.worker.answer = HELLO_REPLY._replace(window=W + 1)
    for pos in range(5):
        assert bench.run(Ask("a", 0, pos, 1)).outcome is Outcome.DISABLED
    assert bench.dial.ops() == [Op.HELLO]
    assert bench.rounds.breaker.n_failed == 0


@pytest.mark.parametrize("code", [77, -1, 10])
def test_c21_an_unknown_frame_status_is_a_refused_reply(code: int) -> None:
    """C21: drop, resync all."""
    bench = running()
    bench.spoil(status(code))
    assert_no_draft(bench.run(A), 1)
    assert bench.dirty() == {0, 1, 2, 3}
    assert fallbacks(bench.counts) == {"fallback_bad_reply": 1}
    assert str(code) in str(bench.counts["last_bad_reply"])
    assert bench.dial.links[0].is_closed


@pytest.mark.parametrize(
    ("error", "outcome", "is_bad_reply"),
    [
        (TimedOut("no whole answer"), Outcome.TIMEOUT, False),
        (Broken("the peer closed the connection"), Outcome.TRANSPORT, False),
        (NotOurs("seq 1, expected 2"), Outcome.BAD_REPLY, True),
    ],
)
def test_a_reply_that_never_came_leaves_every_slot_dirty(
    error: Exception, outcome: Outcome, is_bad_reply: bool
) -> None:
    """§7.4: rank 0 cannot know whether the worker applied the STEP; §6.3: echoes are values too."""
    bench = running()
    bench.spoil(raising(error))
    answer = bench.run(A, B)
    assert answer.outcome is outcome
    assert_no_draft(answer, 2)
    assert bench.dirty() == {0, 1, 2, 3}
    assert fallbacks(bench.counts) == {outcome.counter: 1}
    assert bool(bench.counts["last_bad_reply"]) is is_bad_reply
    bench.clock.wait(1)
    assert bench.run(Ask("a", 0, 8, 1)).outcome is Outcome.DRAFTED
    assert bench.worker.steps[-1].entry(0).req_flags == ALL
    assert bench.worker.held(0) == bench.owned(0)


@pytest.mark.parametrize(
    "fault",
    [
        *[status(code) for code in range(1, 10)],
        *[status(code) for code in (77, -1)],
        raising(TimedOut("late")),
        raising(Broken("gone")),
        edited(lambda reply: reply._replace(draft_ids=(-1,) * N)),
        entry_status(EntryStatus.STALE_GENERATION),
        entry_status(EntryStatus.BAD_ENTRY),
    ],
)
def test_c15_a_step_is_never_sent_twice_in_a_round(fault: Fault) -> None:
    """C15; §7.5: the client never retries."""
    bench = running()
    bench.spoil(fault)
    n_before = len(bench.dial.sent)
    bench.run(A)
    assert len(bench.dial.sent) == n_before + 1
    bench.clock.wait(60)
    bench.run(Ask("a", 0, 8, 1))
    for session in {header.session for header in bench.dial.sent}:
        seqs = [header.seq for header in bench.dial.sent if header.session == session]
        assert seqs == sorted(set(seqs))


# --- refused values -------------------------------------------------------------------------------


def step_id(wrong: int) -> Fault:
    return edited(lambda reply: reply._replace(head=reply.head._replace(step_id=wrong)))


def value(name: str, wrong: float) -> Fault:
    """Position 1 of the first entry holds this."""

    def change(reply: StepReply) -> StepReply:
        values = [*getattr(reply, name)]
        values[1] = wrong
        return StepReply(**{**reply._asdict(), name: tuple(values)})

    return edited(change)


@pytest.mark.parametrize(
    "fault",
    [
        step_id(99),
        step_id(0),
        value("draft_ids", -1),
        value("draft_ids", VOCAB),
        value("confidence", 1.0001),
        value("confidence", NAN),
        entry_status(5, 0),
        entry_status(EntryStatus.OK, 0, window_rows=7),
        entry_status(EntryStatus.PARTIAL_WINDOW, 0, window_rows=8),
        entry_status(EntryStatus.OK, 0, window_rows=9),
        entry_status(EntryStatus.BAD_ENTRY, 0, window_rows=9),
    ],
)
def test_c2_a_refused_reply_is_a_failed_round_and_nothing_of_it_is_used(fault: Fault) -> None:
    """§6.3, v1.4; C2: dropped, the usual backoff, all slots dirty. No one's drafts are used."""
    bench = running()
    bench.spoil(fault)
    answer = bench.run(A, B)
    assert answer.outcome is Outcome.BAD_REPLY
    assert_no_draft(answer, 2)
    assert answer.reason == bench.counts["last_bad_reply"]
    assert fallbacks(bench.counts) == {"fallback_bad_reply": 1}
    assert bench.counts["drafted_requests"] == 3  # the good round's
    assert bench.dirty() == {0, 1, 2, 3}
    assert bench.dial.links[0].is_closed
    bench.clock.wait(0.99)
    assert bench.run(Ask("a", 0, 8, 1)).outcome is Outcome.NO_CONNECTION
    bench.clock.wait(0.01)
    assert bench.run(Ask("a", 0, 9, 1), Ask("b", 1, 11, 1)).outcome is Outcome.DRAFTED
    assert [entry.req_flags for entry in bench.worker.steps[-1].entries] == [ALL, ALL]
    assert bench.worker.held(0) == bench.owned(0)
    assert bench.worker.held(1) == bench.owned(1)


def test_the_last_bad_reply_stays_when_replies_are_good_again() -> None:
    """§6.3: `last_bad_reply` in the stats."""
    bench = running()
    bench.spoil(value("draft_ids", -1))
    bench.run(A)
    bench.clock.wait(1)
    bench.run(Ask("a", 0, 8, 1))
    assert bench.counts["last_bad_reply"] == "entry 0, position 1: draft id -1, vocabulary 100"


# --- entry statuses -------------------------------------------------------------------------------


def test_a_short_window_is_used_counted_and_resynced() -> None:
    """§9.2: PARTIAL_WINDOW."""
    bench = running()
    bench.spoil(entry_status(EntryStatus.PARTIAL_WINDOW, 0, window_rows=3))
    answer = bench.run(A, B)
    assert answer.outcome is Outcome.DRAFTED
    assert [*answer.draft_ids[:N]] == [9, 10, 11]
    assert bench.dirty() == {0, 3}
    assert bench.counts["partial_windows"] == 1
    bench.run(Ask("a", 0, 8, 1), Ask("b", 1, 11, 1))
    assert [e.req_flags for e in bench.worker.steps[-1].entries] == [ALL, NEED_DRAFT]


@pytest.mark.parametrize("code", [EntryStatus.BAD_ENTRY, EntryStatus.INTERNAL])
def test_an_entry_with_an_error_has_no_drafts_and_its_slot_alone_resyncs(code: EntryStatus) -> None:
    """§9.2; §10: a round where only some requests failed is a success."""
    bench = running()
    bench.spoil(entry_status(code, 0))
    answer = bench.run(A, B)
    assert answer.outcome is Outcome.DRAFTED
    assert not any(answer.draft_ids[:N])
    assert all(answer.draft_ids[N:])
    assert bench.dirty() == {0, 3}
    assert bench.rounds.breaker.n_failed == 0
    bench.run(Ask("a", 0, 8, 1))
    assert bench.worker.steps[-1].entry(0).req_flags == ALL
    assert bench.dirty() == {3}


def test_a_bad_entry_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """§9.2: "log the entry"."""
    bench = running()
    bench.spoil(entry_status(EntryStatus.BAD_ENTRY, 1))
    with caplog.at_level(logging.WARNING):
        bench.run(A, B)
    assert "ReqEntry(slot=1" in caplog.text
    assert "ReqEntry(slot=0" not in caplog.text


def test_c23_a_stale_generation_starts_a_new_session_and_changes_no_generation() -> None:
    """§9.2, v1.5; C3: same connection, before the next STEP; C23; C8: seq from 1 again."""
    bench = running()
    generations = [page.generation for page in bench.rounds.ledger.pages]
    bench.spoil(entry_status(EntryStatus.STALE_GENERATION, 0))
    answer = bench.run(A, B)
    assert not any(answer.draft_ids[:N])
    assert bench.counts["stale_generation"] == 1
    assert bench.run(Ask("a", 0, 8, 1), Ask("c", 2, 9, 1)).outcome is Outcome.DRAFTED
    hello, step = bench.dial.sent[-2:]
    assert (hello.op, hello.seq, hello.session) == (Op.HELLO, 1, 0xA2)
    assert (step.op, step.seq, step.session) == (Op.STEP, 2, 0xA2)
    assert [entry.req_flags for entry in bench.worker.steps[-1].entries] == [ALL, ALL]
    assert [page.generation for page in bench.rounds.ledger.pages] == generations
    assert bench.dirty() == {1, 3}  # every live slot resyncs when it comes up
    assert bench.worker.held(2) == bench.owned(2)
    assert bench.link.n_connections == 1


def test_errors_for_all_who_needed_drafts_are_a_failed_attempt() -> None:
    """§10."""
    bench = running()
    bench.spoil(entry_status(EntryStatus.INTERNAL, 0))
    answer = bench.run(A, B._replace(needs_draft=False))
    assert answer.outcome is Outcome.ENTRY_ERRORS
    assert not any(answer.draft_ids)
    assert answer.reason
    assert bench.rounds.breaker.n_failed == 1
    assert bench.dirty() == {0, 3}
    assert fallbacks(bench.counts) == {"fallback_entry_errors": 1}


def test_c12_an_append_whose_entry_fails_is_neutral_and_its_slot_is_dirty() -> None:
    """C12."""
    bench = running()
    bench.spoil(status(FrameStatus.INTERNAL), entry_status(EntryStatus.INTERNAL))
    bench.run(A)
    answer = bench.run(Ask("b", 1, 10, 1, needs_draft=False))
    assert answer.outcome is Outcome.APPENDED
    assert bench.dirty() == {0, 1, 3}
    assert bench.rounds.breaker.n_failed == 1


def test_c13_a_short_window_for_every_request_is_a_success() -> None:
    """C13."""
    bench = running()
    bench.spoil(
        status(FrameStatus.INTERNAL), entry_status(EntryStatus.PARTIAL_WINDOW, window_rows=1)
    )
    bench.run(A)
    bench.run(Ask("a", 0, 8, 1))
    assert bench.rounds.breaker.n_failed == 0


# --- connections ----------------------------------------------------------------------------------


def test_c14_failed_connects_and_hellos_are_no_attempts() -> None:
    """C14: nothing was sent."""
    bench = Bench(trip=1)
    bench.dial.failures = [Broken("refused"), TimedOut("late")]
    bench.spoil(status(FrameStatus.INTERNAL), raising(TimedOut("late")), op=Op.HELLO)
    for pos in range(4):
        assert_no_draft(bench.run(Ask("a", 0, pos, 1)), 1)
        bench.clock.wait(30)
    assert state(bench) is State.CLOSED
    assert bench.rounds.breaker.n_failed == 0
    assert fallbacks(bench.counts) == {"fallback_no_connection": 4}
    assert bench.run(Ask("a", 0, 4, 1)).outcome is Outcome.DRAFTED
    assert bench.worker.held(0) == bench.owned(0)


def test_rows_of_rounds_without_a_connection_reach_the_worker_with_the_next_step() -> None:
    """§7.4: the ring is exact, whatever the network does."""
    bench = running()
    bench.link.drop("a test")
    for pos in range(6, 12):
        assert bench.run(Ask("a", 0, pos, 1)).outcome is Outcome.NO_CONNECTION
    assert bench.rows.stagings[-6:] == [False] * 6
    bench.clock.wait(1)
    bench.run(Ask("a", 0, 12, 1))
    assert bench.worker.steps[-1].rows[0] == [row("a", pos) for pos in range(5, 13)]


def test_c22_stray_bytes_are_a_neutral_round_and_a_resync() -> None:
    """C22: dropped before the next STEP; nothing was sent in that round."""
    bench = running()
    bench.dial.links[0].has_strays = True
    answer = bench.run(A)
    assert answer.outcome is Outcome.NO_CONNECTION
    assert_no_draft(answer, 1)
    assert bench.rounds.breaker.n_failed == 0
    assert n_steps(bench) == 1
    bench.clock.wait(1)
    bench.run(Ask("a", 0, 8, 1))
    assert bench.worker.steps[-1].entry(0).req_flags == ALL


def test_a_restarted_worker_gets_every_window_again() -> None:
    """§7.4, after a reconnect."""
    bench = running()
    bench.worker.session = None
    bench.worker.slots.clear()
    bench.dial.links[0].close()
    assert bench.run(A).outcome is Outcome.NO_CONNECTION
    bench.clock.wait(1)
    bench.run(Ask("a", 0, 8, 1), B, Ask("c", 2, 9, 1))
    assert [entry.req_flags for entry in bench.worker.steps[-1].entries] == [ALL] * 3
    for slot in range(3):
        assert bench.worker.held(slot) == bench.owned(slot)
    assert bench.dirty() == {3}


def reconnecting_in_the_round(bench: Bench) -> None:
    """Between a round's decision to send and its STEP the link finds itself another connection."""
    keep = bench.rows.keep

    def and_reconnect(parts: Sequence[Part], tensors: object, *, stage: bool) -> Sequence[Sampled]:
        sampled = keep(parts, tensors, stage=stage)
        bench.link.drop("a test")
        bench.clock.wait(1)
        assert bench.link.ready()
        bench.rows.keep = keep  # type: ignore[method-assign]
        return sampled

    bench.rows.keep = and_reconnect  # type: ignore[method-assign]


def test_a_connection_newer_than_the_rounds_entries_is_neutral_and_all_resync() -> None:
    """§10, v1.8: nothing is sent, and the next round resyncs."""
    bench = running()
    bench.spoil(status(FrameStatus.INTERNAL))
    bench.run(A)
    reconnecting_in_the_round(bench)
    answer = bench.run(Ask("a", 0, 8, 1))
    assert answer.outcome is Outcome.NEWER_CONNECTION
    assert_no_draft(answer, 1)
    assert n_steps(bench) == 2
    assert bench.rounds.breaker.n_failed == 1
    assert bench.counts["steps_sent"] == 2
    bench.run(Ask("a", 0, 9, 1), B)
    assert [entry.req_flags for entry in bench.worker.steps[-1].entries] == [ALL, ALL]
    assert bench.worker.held(0) == bench.owned(0)


# --- the breaker ----------------------------------------------------------------------------------


def outcomes(bench: Bench, first_pos: int, n: int, **given: Any) -> list[Outcome]:
    """The outcomes of n decode rounds of request a."""
    return [bench.run(Ask("a", 0, first_pos + i, 1, **given)).outcome for i in range(n)]


def test_c10_the_breaker_skips_exactly_its_cooldown_and_then_probes_with_a_resync() -> None:
    """C10; §10: its slots were skipped, so the probe carries their windows."""
    bench = running(trip=3, cooldown=4)
    bench.spoil(*[status(FrameStatus.INTERNAL)] * 3)
    expected = [Outcome.FRAME_ERROR] * 3 + [Outcome.COOLDOWN] * 4 + [Outcome.DRAFTED]
    assert outcomes(bench, 6, 8) == expected
    assert fallbacks(bench.counts) == {"fallback_frame_error": 3, "fallback_cooldown": 4}
    assert bench.worker.steps[-1].entry(0).req_flags == ALL
    assert bench.worker.held(0) == bench.owned(0)
    assert state(bench) is State.CLOSED


def test_a_probe_that_fails_costs_one_round_trip_and_another_cooldown() -> None:
    """§10."""
    bench = running(trip=2, cooldown=3)
    bench.spoil(*[status(FrameStatus.CAPACITY)] * 4)
    silent = [Outcome.COOLDOWN] * 3
    assert outcomes(bench, 6, 10) == [
        *[Outcome.FRAME_ERROR] * 2,
        *[*silent, Outcome.FRAME_ERROR],
        *[*silent, Outcome.FRAME_ERROR],
    ]


def test_c11_appends_are_sent_while_a_probe_is_due_and_close_nothing() -> None:
    """C11."""
    bench = running(trip=1, cooldown=2)
    bench.spoil(status(FrameStatus.INTERNAL))
    assert outcomes(bench, 6, 3)[1:] == [Outcome.COOLDOWN] * 2
    assert outcomes(bench, 9, 2, needs_draft=False) == [Outcome.APPENDED] * 2
    assert state(bench) is State.PROBING
    assert outcomes(bench, 11, 1) == [Outcome.DRAFTED]
    assert state(bench) is State.CLOSED


def test_c11_an_append_that_fails_while_a_probe_is_due_opens_the_breaker_again() -> None:
    """C11."""
    bench = running(trip=1, cooldown=2)
    bench.spoil(status(FrameStatus.INTERNAL), status(FrameStatus.INTERNAL))
    outcomes(bench, 6, 3)
    assert outcomes(bench, 9, 1, needs_draft=False) == [Outcome.FRAME_ERROR]
    assert outcomes(bench, 10, 3) == [Outcome.COOLDOWN] * 2 + [Outcome.DRAFTED]


def test_c27_connecting_goes_on_during_the_cooldown() -> None:
    """C27: the probe finds a connection."""
    bench = running(trip=1, cooldown=4)
    bench.spoil(raising(TimedOut("late")))
    assert outcomes(bench, 6, 2) == [Outcome.TIMEOUT, Outcome.COOLDOWN]
    bench.clock.wait(1)
    assert outcomes(bench, 8, 1) == [Outcome.COOLDOWN]
    assert bench.dial.ops() == [Op.HELLO, Op.STEP, Op.STEP, Op.HELLO]
    assert outcomes(bench, 9, 3) == [Outcome.COOLDOWN] * 2 + [Outcome.DRAFTED]


def test_rounds_without_a_connection_count_towards_the_cooldown() -> None:
    """§10: connected or not."""
    bench = running(trip=1, cooldown=3)
    bench.spoil(raising(Broken("gone")))
    assert outcomes(bench, 6, 5) == [
        Outcome.TRANSPORT,
        *[Outcome.COOLDOWN] * 3,
        Outcome.NO_CONNECTION,
    ]
    bench.clock.wait(1)
    assert outcomes(bench, 11, 1) == [Outcome.DRAFTED]


@pytest.mark.parametrize(
    "fault",
    [
        status(FrameStatus.MALFORMED),
        status(FrameStatus.NO_SESSION),
        status(77),
        raising(TimedOut("late")),
        raising(Broken("gone")),
        value("draft_ids", -1),
        entry_status(EntryStatus.BAD_ENTRY),
        entry_status(EntryStatus.STALE_GENERATION),
    ],
)
def test_every_kind_of_failure_is_a_failed_attempt(fault: Fault) -> None:
    """§10: timeout, transport error, refused reply, frame error, errors for all who needed."""
    bench = running(trip=2, cooldown=3)
    bench.spoil(fault, fault)
    bench.run(A)
    assert bench.rounds.breaker.n_failed == 1
    bench.clock.wait(2)
    bench.run(Ask("a", 0, 8, 1))
    assert state(bench) is State.OPEN


def test_trip_0_tries_again_in_every_round() -> None:
    """§10: as before v1.6."""
    bench = running(trip=0)
    bench.spoil(*[status(FrameStatus.INTERNAL)] * 20)
    assert outcomes(bench, 6, 21) == [Outcome.FRAME_ERROR] * 20 + [Outcome.DRAFTED]


# --- the kill switch ------------------------------------------------------------------------------


def test_the_kill_switch_sends_nothing_dials_nobody_and_goes_on_with_a_resync() -> None:
    """R40: a neutral round, slots dirty, counted; no restart."""
    is_off = False
    bench = running(switch=Switch(Path("/run/off"), lambda _: is_off))
    bench.spoil(status(FrameStatus.INTERNAL))
    bench.run(A)
    is_off = True
    bench.clock.wait(1)
    for pos in (8, 9):
        answer = bench.run(Ask("a", 0, pos, 1), Ask("b", 1, pos + 2, 1))
        assert answer.outcome is Outcome.SWITCHED_OFF
        assert [*answer.draft_ids, *answer.confidence] == [0] * 4 * N
    assert n_steps(bench) == 2
    assert bench.rounds.breaker.n_failed == 1
    assert fallbacks(bench.counts) == {"fallback_frame_error": 1, "fallback_switched_off": 2}
    assert bench.dirty() >= {0, 1}
    is_off = False
    bench.clock.wait(1)
    assert bench.run(Ask("a", 0, 10, 1), Ask("b", 1, 12, 1)).outcome is Outcome.DRAFTED
    assert [entry.req_flags for entry in bench.worker.steps[-1].entries] == [ALL, ALL]
    assert bench.worker.held(0) == bench.owned(0)


def test_a_switch_that_is_off_from_the_start_dials_nobody() -> None:
    bench = Bench(switch=Switch(Path("/run/off"), lambda _: True))
    assert bench.run(Ask("a", 0, 0, 6)).outcome is Outcome.SWITCHED_OFF
    assert bench.dial.dialled == []
    assert bench.dial.sent == []


def test_the_cooldown_runs_on_while_the_switch_is_off() -> None:
    """§10: it counts engine rounds."""
    is_off = False
    bench = running(trip=1, cooldown=3, switch=Switch(Path("/run/off"), lambda _: is_off))
    bench.spoil(status(FrameStatus.INTERNAL))
    bench.run(A)
    is_off = True
    bench.clock.wait(1)
    assert outcomes(bench, 8, 3) == [Outcome.SWITCHED_OFF] * 3
    is_off = False
    bench.clock.wait(1)
    assert outcomes(bench, 11, 1) == [Outcome.DRAFTED]


# --- slots ----------------------------------------------------------------------------------------


def test_a_reused_slot_never_shows_the_rows_of_its_last_owner() -> None:
    """§7.1."""
    bench = running()
    bench.run(Ask("d", 0, 0, 3))
    assert bench.worker.held(0) == {pos: row("d", pos) for pos in range(3)}
    seen = bench.worker.steps[-1].entry(0)
    assert (seen.generation, seen.req_flags) == (2, NEW_GEN | NEED_DRAFT)


def test_rejected_rows_reach_neither_ring_nor_worker() -> None:
    """§4.3."""
    bench = running()
    bench.run(Ask("b", 1, 10, 4, n_rejected=3, k_window=3))
    assert bench.owned(1) == {pos: row("b", pos) for pos in range(3, 11)}
    assert bench.worker.held(1) == bench.owned(1)
    assert bench.worker.steps[-1].entry(1).k_window == 3


def test_as_many_requests_as_slots_fit_in_a_resync() -> None:
    """§6.2: max_rows_per_step is max_slots × W."""
    bench = Bench()
    asks = [Ask(f"r{slot}", slot, 0, 3 * W) for slot in range(SLOTS)]
    bench.run(*asks)
    bench.rounds.ledger.soil_all()
    answer = bench.run(*[ask._replace(first_pos=3 * W, n_rows=2) for ask in asks])
    assert answer.outcome is Outcome.DRAFTED
    assert bench.worker.steps[-1].head.n_rows == SLOTS * W
    assert bench.counts["resyncs"] == SLOTS


# --- what the engine learns beside the drafts -----------------------------------------------------


def test_every_request_learns_how_many_drafts_it_got() -> None:
    """§6.3: n_out of N; None for those that wanted none."""
    bench = running(caps=Caps((Range(3, 3, 2),), ""))
    bench.spoil(entry_status(EntryStatus.INTERNAL, 2))
    answer = bench.run(A, B._replace(needs_draft=False), Ask("c", 2, 9, 1))
    assert answer.n_drafts == [2, None, 0]
    assert bench.run(Ask("a", 0, 8, 1)).n_drafts == [N]
    bench.spoil(status(FrameStatus.INTERNAL))
    assert bench.run(Ask("a", 0, 9, 1), Ask("b", 1, 11, 1, needs_draft=False)).n_drafts == [0, None]


def test_a_round_in_two_halves_is_a_round() -> None:
    """§4.2: what is settled before the device has answered, and after."""
    bench = running()
    asked = batch(A)
    begun = bench.rounds.begin(asked.requests)
    assert (begun.silence, bench.dial.ops()[1:]) == (None, [Op.STEP])
    sampled = bench.rows.keep(begun.parts, asked.tensors, stage=True)
    assert bench.rounds.end(begun, sampled).outcome is Outcome.DRAFTED
    assert bench.worker.held(0) == bench.owned(0)


def test_a_fault_of_our_own_is_a_round_without_drafts_after_which_nothing_is_trusted() -> None:
    """§7.4: neither ring nor worker; the next rounds start from the rows that they bring."""
    bench = running()
    answer = bench.rounds.fault(batch(A, B).requests, "ValueError: a bug")
    assert answer.outcome is Outcome.OWN_FAULT
    assert_no_draft(answer, 2)
    assert bench.dirty() == set(range(SLOTS))
    assert bench.dial.links[0].is_closed
    assert fallbacks(bench.counts) == {"fallback_own_fault": 1}
    bench.clock.wait(1)
    for pos in range(8, 8 + W):
        assert bench.run(Ask("a", 0, pos, 1)).outcome is Outcome.DRAFTED
        assert bench.worker.held(0) == bench.owned(0)
    assert bench.worker.steps[-W].entry(0).first_pos == 8
    assert bench.worker.steps[-1].entry(0).n_rows == W
    assert bench.dirty() == {1, 2, 3}


def test_a_fault_in_a_round_that_the_breaker_kept_silent_does_not_lengthen_the_cooldown() -> None:
    """§10: it counts engine rounds; a silent one is no attempt."""
    bench = running(trip=1, cooldown=3)
    bench.spoil(status(FrameStatus.INTERNAL))
    bench.run(A)
    for pos in (8, 9, 10):
        requests = batch(Ask("a", 0, pos, 1)).requests
        assert bench.rounds.begin(requests).silence is Outcome.COOLDOWN
        bench.rounds.fault(requests, "ValueError: a bug")
    bench.clock.wait(60)
    assert bench.run(Ask("a", 0, 11, 1)).outcome is Outcome.DRAFTED


def test_a_fault_in_a_round_that_could_send_is_a_failed_attempt() -> None:
    bench = running(trip=1, cooldown=3)
    requests = batch(A).requests
    bench.rounds.begin(requests)
    bench.rounds.fault(requests, "ValueError: a bug")
    assert state(bench) is State.OPEN


def test_a_cooldown_says_what_the_last_failed_attempt_was() -> None:
    """§10; C27: the connection that was made meanwhile has forgotten it."""
    bench = running(trip=1, cooldown=4)
    bench.spoil(raising(TimedOut("no whole answer")))
    assert bench.run(A).outcome is Outcome.TIMEOUT
    bench.clock.wait(2)
    answer = bench.run(A)
    assert answer.outcome is Outcome.COOLDOWN
    assert bench.rounds.link.is_connected
    assert answer.reason == "the breaker is open; at last TIMEOUT: no whole answer"


def test_a_switch_file_that_cannot_be_looked_at_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def exists(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    bench = running(switch=Switch(Path("/run/off"), exists))
    for _ in range(3):
        bench.clock.wait(1)
        bench.run(A)
    assert [r.message for r in caplog.records if "switch file" in r.message] == [
        "the switch file: /run/off: cannot be looked at: Permission denied"
    ]


def test_a_round_that_breaks_off_is_counted_as_one() -> None:
    bench = running()
    counted = [bench.counts["rounds"]]
    bench.rounds.begin(())
    bench.rounds.fault((), "ValueError: x")
    counted.append(bench.counts["rounds"])
    assert counted == [1, 2]
