"""Rank 0's book (§7.1, §7.3, §7.4): owners, generations, windows, and the entries they lead to."""

import pytest

from dsparkctl.contract.codes import NEED_DRAFT, NEW_GEN, RESYNC
from dsparkctl.contract.records import ReqEntry
from dsparkctl.state.ledger import Ledger, Part, Sampled, Scheduled
from dsparkctl.state.window import EMPTY, Window, rows_before

W = 128
ALL = NEW_GEN | NEED_DRAFT | RESYNC


class Rounds:
    """One ledger, and rounds of single requests on it."""

    def __init__(self, generation: int = 0, width: int = W) -> None:
        self.ledger = Ledger(4, width, generation)

    def open(self, owner: str, slot: int, first_pos: int, n_rows: int, *, k: int = 0) -> Part:
        return self.ledger.open([Scheduled(owner, slot, 100, first_pos, n_rows, k)])[0]

    def run(
        self,
        owner: str,
        slot: int,
        first_pos: int,
        n_rows: int,
        *,
        rejected: int = 0,
        draft: bool = True,
        n_out: int = 0,
        k: int = 0,
    ) -> ReqEntry:
        part = self.open(owner, slot, first_pos, n_rows, k=k)
        return self.ledger.close([part], [Sampled(rejected, draft, 77)], n_out)[0]

    def window(self, slot: int = 0) -> Window:
        return self.ledger.pages[slot].window


# --- owners and generations -----------------------------------------------------------------------


def test_a_new_owner_takes_the_next_generation_and_says_new_gen() -> None:
    """§7.1."""
    rounds = Rounds(generation=41)
    first = rounds.run("a", 0, 0, 5)
    assert (first.generation, first.req_flags) == (42, NEW_GEN | NEED_DRAFT)
    again = rounds.run("a", 0, 5, 1)
    assert (again.generation, again.req_flags) == (42, NEED_DRAFT)
    other = rounds.run("b", 0, 0, 5)
    assert (other.generation, other.req_flags) == (43, NEW_GEN | NEED_DRAFT)


def test_a_request_that_comes_back_after_another_is_a_new_owner() -> None:
    """§7.1: preempted and added again."""
    rounds = Rounds()
    generations = [rounds.run(owner, 0, 0, 5).generation for owner in ("a", "b", "a")]
    assert generations == [1, 2, 3]


def test_slots_count_their_generations_apart() -> None:
    rounds = Rounds()
    rounds.run("a", 0, 0, 5)
    rounds.run("b", 0, 0, 5)
    assert rounds.run("c", 3, 0, 5).generation == 1


def test_generations_wrap() -> None:
    """§7.1: u32, serial-number arithmetic."""
    rounds = Rounds(generation=0xFFFFFFFE)
    generations = [rounds.run(owner, 0, 0, 5).generation for owner in "abc"]
    assert generations == [0xFFFFFFFF, 0, 1]


def test_nothing_but_a_new_owner_changes_a_generation() -> None:
    """§7.1: failures, resyncs and roll-backs keep it."""
    rounds = Rounds()
    first = rounds.run("a", 0, 0, 20).generation
    rounds.ledger.soil_all()
    assert rounds.run("a", 0, 20, 1).generation == first
    assert rounds.run("a", 0, 3, 1).generation == first
    rounds.ledger.soil([0])
    rounds.ledger.clean([0])
    assert rounds.run("a", 0, 4, 1).generation == first


def test_a_new_owner_empties_the_window_on_both_sides() -> None:
    """§7.1: clears the ring range, before any row of the new owner."""
    rounds = Rounds()
    rounds.run("a", 0, 0, 20)
    rounds.open("b", 0, 5, 3)
    assert rounds.window() == EMPTY
    assert rounds.run("b", 0, 5, 3).n_rows == 3
    assert rounds.window() == Window(5, 7)


def test_c7_a_new_owner_in_a_dirty_slot_sends_its_own_rows_under_new_gen() -> None:
    """C7: there is nothing of it to re-send; RESYNC is informative."""
    rounds = Rounds()
    rounds.run("a", 0, 0, 20)
    rounds.ledger.soil_all()
    entry = rounds.run("b", 0, 0, 6)
    assert entry.req_flags & (NEW_GEN | NEED_DRAFT) == NEW_GEN | NEED_DRAFT
    assert (entry.first_pos, entry.n_rows) == (0, 6)


def test_c7_the_first_step_of_all_says_new_gen() -> None:
    """C7."""
    assert Rounds().run("a", 2, 0, 6).req_flags & NEW_GEN


# --- which rows -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_rows", "n_sent"), [(1, 1), (127, 127), (128, 128), (129, 128)])
def test_a_prefill_chunk_sends_its_last_w_rows(n_rows: int, n_sent: int) -> None:
    """§4.3: candidates are the last min(q, W) rows of the span."""
    rounds = Rounds()
    part = rounds.open("a", 0, 1000, n_rows)
    assert (part.row, part.first_pos, part.n_rows) == (
        100 + n_rows - n_sent,
        1000 + n_rows - n_sent,
        n_sent,
    )
    entry = rounds.ledger.close([part], [Sampled(0, False, 5)], 0)[0]
    assert (entry.first_pos, entry.n_rows) == (1000 + n_rows - n_sent, n_sent)
    assert entry.anchor_pos == 1000 + n_rows
    assert entry.req_flags == NEW_GEN


@pytest.mark.parametrize("rejected", range(6))
def test_rejected_rows_are_not_sent_and_the_anchor_stands_behind_the_last_kept_one(
    rejected: int,
) -> None:
    """§4.3: the first n − num_rejected; anchor_pos = first_pos + n_rows."""
    rounds = Rounds()
    rounds.run("a", 0, 0, 10)
    entry = rounds.run("a", 0, 10, 6, rejected=rejected, k=5)
    assert (entry.first_pos, entry.n_rows, entry.k_window) == (10, 6 - rejected, 5)
    assert (entry.anchor_pos, entry.anchor_token) == (16 - rejected, 77)
    assert rounds.window() == Window(0, 15 - rejected)


def test_the_book_keeps_w_rows() -> None:
    """§7.3: the same rule as the worker's."""
    rounds = Rounds()
    rounds.run("a", 0, 0, 128)
    rounds.run("a", 0, 128, 3)
    assert rounds.window() == Window(3, 130)


def test_a_request_that_comes_back_lower_rolls_the_book_back() -> None:
    """§7.1: rows below stay, the generation too."""
    rounds = Rounds()
    rounds.run("a", 0, 0, 100)
    entry = rounds.run("a", 0, 40, 2)
    assert (entry.first_pos, entry.n_rows, entry.req_flags) == (40, 2, NEED_DRAFT)
    assert rounds.window() == Window(0, 41)


def test_a_request_that_comes_back_below_its_window_starts_there() -> None:
    """§7.2.3: lo = min(lo, p0)."""
    rounds = Rounds()
    rounds.run("a", 0, 300, 128)
    rounds.run("a", 0, 290, 4)
    assert rounds.window() == Window(290, 293)


def test_rows_behind_a_gap_start_the_book_anew() -> None:
    """§7.2.3."""
    rounds = Rounds()
    rounds.run("a", 0, 0, 10)
    rounds.run("a", 0, 11, 4)
    assert rounds.window() == Window(11, 14)


def test_a_span_of_which_nothing_is_kept_rolls_back_to_its_own_anchor() -> None:
    """§7.2.3, n_rows 0."""
    rounds = Rounds()
    rounds.run("a", 0, 0, 10)
    entry = rounds.run("a", 0, 7, 2, rejected=2)
    assert (entry.n_rows, entry.anchor_pos) == (0, 7)
    assert rounds.window() == Window(0, 6)


@pytest.mark.parametrize("held", [0, 5])
def test_a_span_behind_a_gap_of_which_nothing_is_kept_claims_no_rows(held: int) -> None:
    """§7.2.3: the worker refuses such an entry and keeps what it has."""
    rounds = Rounds()
    if held:
        rounds.run("a", 0, 0, held)
    rounds.run("a", 0, 10, 2, rejected=2)
    assert rounds.window() == Window(0, held - 1)


def test_n_out_is_asked_for_where_drafts_are() -> None:
    """§6.3, v1.3."""
    rounds = Rounds()
    assert rounds.run("a", 0, 0, 10, draft=False, n_out=4).n_out == 0
    assert rounds.run("a", 0, 10, 1, n_out=4).n_out == 4


def test_entries_stand_in_batch_order() -> None:
    """§6.3."""
    ledger = Ledger(4, W)
    batch = [Scheduled("c", 3, 0, 0, 4, 0), Scheduled("a", 0, 4, 7, 1, 0)]
    entries = ledger.close(ledger.open(batch), [Sampled(0, True, 1)] * 2, 0)
    assert [entry.slot for entry in entries] == [3, 0]


def test_every_part_needs_its_sample() -> None:
    ledger = Ledger(4, W)
    parts = ledger.open([Scheduled("c", 3, 0, 0, 4, 0)])
    with pytest.raises(ValueError, match="argument"):
        ledger.close(parts, [], 0)


# --- resync ---------------------------------------------------------------------------------------


def test_a_dirty_slot_sends_its_whole_window_with_this_rounds_rows() -> None:
    """§7.4: NEW_GEN | RESYNC, rows [max(lo, anchor − W), hi]."""
    rounds = Rounds()
    rounds.run("a", 0, 0, 100)
    rounds.ledger.soil([0])
    entry = rounds.run("a", 0, 100, 6, rejected=2)
    assert entry.req_flags == ALL
    assert (entry.first_pos, entry.n_rows, entry.anchor_pos) == (0, 104, 104)


def test_a_resync_sends_w_rows_and_no_more() -> None:
    """§7.4: max(lo, anchor_pos − W)."""
    rounds = Rounds()
    rounds.run("a", 0, 0, 128)
    rounds.ledger.soil([0])
    entry = rounds.run("a", 0, 128, 6)
    assert (entry.first_pos, entry.n_rows, entry.anchor_pos) == (6, 128, 134)


def test_a_resync_after_a_roll_back_sends_what_is_left() -> None:
    """§7.4: the rows the worker would have held with no failure."""
    rounds = Rounds()
    rounds.run("a", 0, 72, 128)
    rounds.ledger.soil([0])
    entry = rounds.run("a", 0, 150, 1)
    assert (entry.first_pos, entry.n_rows, entry.anchor_pos) == (72, 79, 151)


def test_a_resync_behind_a_gap_sends_the_new_rows_alone() -> None:
    rounds = Rounds()
    rounds.run("a", 0, 0, 10)
    rounds.ledger.soil([0])
    entry = rounds.run("a", 0, 20, 3)
    assert (entry.first_pos, entry.n_rows) == (20, 3)


def test_a_slot_resyncs_in_every_round_until_it_is_clean() -> None:
    """§7.4: a failed resync leaves it dirty."""
    rounds = Rounds()
    rounds.run("a", 0, 0, 10)
    rounds.ledger.soil([0])
    assert rounds.run("a", 0, 10, 1).req_flags == ALL
    assert rounds.run("a", 0, 11, 1).req_flags == ALL
    rounds.ledger.clean([0])
    assert rounds.run("a", 0, 12, 1).req_flags == NEED_DRAFT


def test_c16_only_dirty_slots_resync() -> None:
    """C16."""
    rounds = Rounds()
    rounds.run("a", 0, 0, 10)
    rounds.run("b", 1, 0, 10)
    rounds.ledger.soil([1])
    assert rounds.run("a", 0, 10, 1).req_flags == NEED_DRAFT
    assert rounds.run("b", 1, 10, 1).req_flags == ALL


def test_all_slots_are_soiled_at_once() -> None:
    """§7.4: after a reconnect, NO_SESSION, STALE_SEQ, a refused reply."""
    ledger = Ledger(4, W)
    ledger.soil_all()
    assert [page.is_dirty for page in ledger.pages] == [True] * 4


def test_c24_a_prefix_hit_with_bounded_replay_fills_the_window_in_its_first_chunk() -> None:
    """C24, §4.3: the 128 tokens before the hit are computed again, so drafts never see less."""
    for hit in (129, 500, 4096):
        for n_new in (1, 5, 200):
            rounds = Rounds()
            entry = rounds.run("a", 0, hit - W, W + n_new)
            assert rows_before(rounds.window(), entry.anchor_pos, W) == W
