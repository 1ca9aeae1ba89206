"""The state of both sides, held against each other and against what is known otherwise.

Decides when two books must say the same. The worker's window has to be the ring's only where rank 0
believes so (a clean slot, a connection that has said HELLO), the session is alive, and nobody has
changed the worker behind rank 0's back; such a slot is a suspect until its window is seen whole.
"""

from collections.abc import Sequence

from dsparkctl.client.rounds import Answer
from dsparkctl.simulation.engine import Step
from dsparkctl.simulation.invariant import InvariantBroken, require
from dsparkctl.simulation.network import Network
from dsparkctl.simulation.recount import BreakerRecount, SlotRecount
from dsparkctl.simulation.spark import Shared, Spark
from dsparkctl.state.breaker import State
from dsparkctl.state.ledger import Page


def same_book(slots: Sequence[SlotRecount], spark: Spark) -> None:
    """Owner, generation and dirt of every slot (§7.1, §7.4)."""
    for i, (book, page) in enumerate(zip(slots, spark.rounds.ledger.pages, strict=True)):
        ours = (book.owner, book.generation, book.is_dirty)
        theirs = (page.owner, page.generation, page.is_dirty)
        if ours != theirs and book.owner:
            raise InvariantBroken("ledger", f"slot {i}: {theirs}, expected {ours}")


def same_breaker(recount: BreakerRecount, n_round: int, spark: Spark) -> None:
    """Failed attempts in a row, and silent rounds that are left (§10)."""
    breaker = spark.rounds.breaker
    n_silent = breaker.n_silent if breaker.state is State.OPEN else 0
    require(n_silent == max(0, recount.last_silent_round - n_round), "breaker", breaker)
    if breaker.trip:
        n_failed = 0 if recount.probe_is_due else recount.n_failed
        require(breaker.n_failed == n_failed, "breaker", breaker)


def same_rings(step: Step, spark: Spark) -> None:
    """Rank 0's ring holds what the engine computed, up to the anchor, and W rows of it (§4.3)."""
    pages, rings = spark.rounds.ledger.pages, spark.rows.ring
    for request, sampled in zip(step.requests, step.sampled, strict=True):
        lo, hi = pages[request.slot].window
        ring = rings[request.slot]
        width = len(ring)
        is_whole = not sampled.needs_draft or hi - lo + 1 == min(width, request.n_computed)
        if hi != request.n_computed - 1 or not is_whole:
            raise InvariantBroken("the ring is whole", f"{request.name}: {lo}..{hi}")
        if [ring[pos % width] for pos in range(lo, hi + 1)] != request.rows[lo : hi + 1]:
            raise InvariantBroken("the ring is exact", request.name)


def same_windows(session_id: int, spark: Spark, network: Network) -> None:
    """The worker's window of every clean slot is the ring's, byte for byte (§7.3)."""
    session = network.worker.session
    if session is None or session.id != session_id or not spark.link.is_connected:
        return
    for i, page in enumerate(spark.rounds.ledger.pages):
        if page.owner is None or page.is_dirty:
            continue
        if _is_same_window(i, page, spark, network):
            network.suspects.discard(i)
        elif i not in network.suspects:
            raise InvariantBroken("the worker's window is the ring's", f"slot {i}: {page}")


def _is_same_window(i: int, page: Page, spark: Spark, network: Network) -> bool:
    slot = network.worker.slots[i]
    if slot.window != page.window or slot.generation != page.generation:
        return False
    ring, kept = spark.rows.ring[i], network.worker.drafter.rows[i]
    lo, hi = page.window
    width = len(ring)
    if hi - lo + 1 == width:
        return ring == kept
    return all(ring[pos % width] == kept[pos % width] for pos in range(lo, hi + 1))


def ranks_agree(answer: Answer, rank_0: Shared, rank_1: Shared) -> None:
    """One tensor, and it says what the round said (§4.1)."""
    require(rank_0 == rank_1, "both ranks see one tensor")
    require(rank_1.status == answer.outcome, "both ranks see one tensor", "status")
    require(rank_1.draft_ids == (*answer.draft_ids,), "both ranks see one tensor", "drafts")
    require(rank_1.confidence == (*answer.confidence,), "both ranks see one tensor", "confidence")
