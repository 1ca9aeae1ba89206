"""Rank 0's counters: a key that exists moves by exactly one per event (§6.3, §10)."""

from typing import Any

import pytest

from dsparkctl.client.counters import Counters
from dsparkctl.client.fallback import Outcome
from dsparkctl.contract.codes import NEED_DRAFT, NEW_GEN, RESYNC, EntryStatus
from dsparkctl.contract.records import ReqEntry, ReqStatus
from dsparkctl.state.ledger import Sampled, Scheduled

FRESH = Counters(5).snapshot()


def moved(counters: Counters) -> dict[str, Any]:
    """The keys that differ from a fresh snapshot's, times aside."""
    now = counters.snapshot()
    assert now.keys() == FRESH.keys()
    return {
        key: value
        for key, value in now.items()
        if value != FRESH[key] and not key.startswith("round_us")
    }


def entry(flags: int = NEED_DRAFT, n_rows: int = 1) -> ReqEntry:
    return ReqEntry(0, flags, 0, 0, 1, 0, n_rows, 1, n_rows)


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_moves_its_own_counter_by_one(outcome: Outcome) -> None:
    """§10."""
    counters = Counters(5)
    counters.ended(outcome)
    assert moved(counters) == {outcome.counter: 1}
    counters.ended(outcome)
    assert moved(counters) == {outcome.counter: 2}


def test_every_counter_is_there_from_the_start() -> None:
    assert {outcome.counter for outcome in Outcome} <= FRESH.keys()
    assert FRESH["rounds"] == FRESH["steps_sent"] == 0
    assert (FRESH["round_us_p50"], FRESH["round_us_p99"]) == (None, None)
    assert FRESH["last_bad_reply"] == ""


@pytest.mark.parametrize(
    ("status", "keys"),
    [
        (EntryStatus.OK, {"drafted_requests"}),
        (EntryStatus.PARTIAL_WINDOW, {"drafted_requests", "partial_windows"}),
        (EntryStatus.STALE_GENERATION, {"stale_generation"}),
        (EntryStatus.BAD_ENTRY, {"bad_entries"}),
        (EntryStatus.INTERNAL, {"internal_entries"}),
    ],
)
def test_entries_are_counted_by_their_status(status: EntryStatus, keys: set[str]) -> None:
    """§9.2: count PARTIAL_WINDOW; drafts exist with OK and PARTIAL_WINDOW alone."""
    counters = Counters(5)
    counters.answered([entry()], [ReqStatus(status, 0, 1)])
    assert moved(counters) == dict.fromkeys(keys, 1)


def test_an_append_is_no_drafted_request() -> None:
    counters = Counters(5)
    counters.answered([entry(NEW_GEN)], [ReqStatus(EntryStatus.OK, 0, 1)])
    assert moved(counters) == {}


def test_a_sent_step_counts_its_rows_and_resyncs() -> None:
    counters = Counters(5)
    counters.sent([entry(n_rows=128), entry(NEED_DRAFT | NEW_GEN | RESYNC, 6)], 900.0)
    assert moved(counters) == {"steps_sent": 1, "rows_sent": 134, "resyncs": 1}


@pytest.mark.parametrize(
    ("k_window", "n_rejected", "verified", "accepted"),
    [
        (5, 0, [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]),
        (5, 5, [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]),
        (4, 1, [1, 1, 1, 1, 0], [1, 1, 1, 0, 0]),
        (0, 0, [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]),
        (7, 7, [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]),
    ],
)
def test_the_targets_verdict_on_the_last_drafts_is_counted_by_position(
    k_window: int, n_rejected: int, verified: list[int], accepted: list[int]
) -> None:
    """§4.3: the first k − num_rejected drafts were accepted."""
    counters = Counters(5)
    counters.verified(
        [Scheduled("a", 0, 0, 10, 1 + k_window, k_window)], [Sampled(n_rejected, True, 1)]
    )
    snapshot = counters.snapshot()
    assert (snapshot["verified"], snapshot["accepted"]) == (verified, accepted)


def test_a_round_without_requests_is_a_round() -> None:
    counters = Counters(5)
    counters.began()
    assert moved(counters) == {"rounds": 1}


def test_percentiles_look_at_the_last_rounds_alone() -> None:
    """µs; nearest rank."""
    counters = Counters(5)
    for _ in range(500):
        counters.sent([], 1e6)
    for us in range(1024):
        counters.sent([], float(us))
    snapshot = counters.snapshot()
    assert snapshot["round_us_p50"] == 512.0
    assert snapshot["round_us_p99"] == 1013.0


def test_one_round_is_every_percentile() -> None:
    counters = Counters(5)
    counters.sent([], 712.34)
    assert counters.snapshot()["round_us_p50"] == 712.3
    assert counters.snapshot()["round_us_p99"] == 712.3


def test_a_snapshot_is_a_copy() -> None:
    counters = Counters(5)
    snapshot = counters.snapshot()
    snapshot["rounds"], snapshot["accepted"][0] = 7, 7
    assert counters.snapshot() == FRESH
