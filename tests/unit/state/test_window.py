"""The window rule (§7.2) clause by clause, and the readings that settle it (R15 to R30)."""

import pytest

from dsparkctl.contract.codes import NEED_DRAFT, NEW_GEN, RESYNC, EntryStatus
from dsparkctl.contract.layout import pack
from dsparkctl.contract.records import ReqEntry, ReqStatus
from dsparkctl.state.window import (
    EMPTY,
    VACANT,
    Bounds,
    Outcome,
    Slot,
    Window,
    apply_entry,
    extended,
    rolled_back,
    rows_before,
)

BOUNDS = Bounds(width=8, vocab_size=512, max_model_len=1000)
GEN = 7
HELD = Slot(GEN, Window(10, 15))


def entry(
    first_pos: int,
    n_rows: int,
    *,
    flags: int = NEED_DRAFT,
    generation: int = GEN,
    anchor_pos: int | None = None,
    anchor_token: int = 1,
) -> ReqEntry:
    """Rows `first_pos..first_pos + n_rows - 1`, anchored behind them unless told otherwise."""
    anchor_pos = first_pos + n_rows if anchor_pos is None else anchor_pos
    return ReqEntry(0, flags, 0, 0, generation, first_pos, n_rows, anchor_token, anchor_pos)


def no_rows(anchor_pos: int, *, flags: int = NEED_DRAFT, first_pos: int = 0) -> ReqEntry:
    return entry(first_pos, 0, anchor_pos=anchor_pos, flags=flags)


def apply(slot: Slot, asked: ReqEntry) -> Outcome:
    """What becomes of the slot; every outcome must fit the unsigned fields of its ReqStatus."""
    outcome = apply_entry(slot, asked, BOUNDS)
    assert pack(ReqStatus(outcome.status, outcome.window_rows, asked.generation))
    assert bool(outcome.refusal) == (
        outcome.status in (EntryStatus.STALE_GENERATION, EntryStatus.BAD_ENTRY)
    )
    return outcome


# --- step 1: generations ---


@pytest.mark.parametrize("flags", [0, NEED_DRAFT, NEW_GEN, NEW_GEN | RESYNC | NEED_DRAFT])
def test_an_older_generation_is_stale_whatever_its_flags_and_the_window_is_kept(flags: int) -> None:
    """§7.2.1 (v1.5)."""
    outcome = apply(HELD, entry(16, 1, generation=GEN - 1, flags=flags))
    assert outcome[:3] == (HELD, EntryStatus.STALE_GENERATION, 0)


def test_staleness_comes_before_validation() -> None:
    """§7.2: the steps happen in order."""
    outcome = apply(HELD, entry(-5, 99, generation=GEN - 1))
    assert outcome[:2] == (HELD, EntryStatus.STALE_GENERATION)


def test_a_newer_generation_empties_the_window_and_is_adopted() -> None:
    """§7.2.1: its rows then start a window of their own, even where they would have fitted."""
    outcome = apply(HELD, entry(16, 2, generation=GEN + 1))
    assert outcome.slot == Slot(GEN + 1, Window(16, 17))
    assert outcome[1:3] == (EntryStatus.PARTIAL_WINDOW, 2)


def test_new_gen_with_the_slots_own_generation_empties_the_window() -> None:
    """§7.2.1: a resync."""
    outcome = apply(HELD, entry(16, 2, flags=NEW_GEN | RESYNC | NEED_DRAFT))
    assert outcome.slot == Slot(GEN, Window(16, 17))


def test_resync_alone_is_informative() -> None:
    """§6.3: only NEW_GEN empties."""
    assert apply(HELD, entry(16, 1, flags=RESYNC)).slot.window == Window(10, 16)


def test_the_generation_after_the_greatest_is_zero() -> None:
    """§7.1: u32, wraps."""
    slot = Slot(0xFFFFFFFF, Window(0, 3))
    assert apply(slot, entry(4, 1, generation=0)).slot == Slot(0, Window(4, 4))
    back = apply(Slot(0, Window(0, 3)), entry(4, 1, generation=0xFFFFFFFF))
    assert back.status is EntryStatus.STALE_GENERATION


def test_a_distance_of_exactly_half_the_circle_is_older() -> None:
    """R25."""
    slot = Slot(0, Window(0, 3))
    half = apply(slot, entry(4, 1, generation=0x80000000))
    assert half.status is EntryStatus.STALE_GENERATION
    assert apply(slot, entry(4, 1, generation=0x7FFFFFFF)).slot.generation == 0x7FFFFFFF


@pytest.mark.parametrize("generation", [0, 1, 0x7FFFFFFF, 0x80000000, 0x80000005, 0xFFFFFFFF])
@pytest.mark.parametrize("flags", [NEED_DRAFT, NEED_DRAFT | NEW_GEN])
def test_a_vacant_slot_takes_any_generation(generation: int, flags: int) -> None:
    """R23."""
    outcome = apply(VACANT, entry(0, 3, generation=generation, flags=flags))
    assert outcome[:3] == (Slot(generation, Window(0, 2)), EntryStatus.OK, 3)


def test_an_invalid_entry_has_adopted_its_newer_generation() -> None:
    """R22: "in order"."""
    outcome = apply(HELD, entry(16, 9, generation=GEN + 1))
    assert outcome[:3] == (Slot(GEN + 1, EMPTY), EntryStatus.BAD_ENTRY, 0)


def test_an_invalid_entry_with_new_gen_has_emptied_the_window() -> None:
    """R22."""
    assert apply(HELD, entry(16, 9, flags=NEW_GEN)).slot == Slot(GEN, EMPTY)


# --- step 2: validation ---


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(entry(16, 9), id="more rows than a window has"),
        pytest.param(entry(16, 0xFFFFFFFF), id="the most rows that the field holds"),
        pytest.param(entry(-1, 2), id="first_pos negative"),
        pytest.param(entry(16, 2, anchor_pos=19), id="anchor_pos beyond the rows"),
        pytest.param(entry(16, 2, anchor_pos=17), id="anchor_pos within the rows"),
        pytest.param(entry((1 << 63) - 1, 1, anchor_pos=-(1 << 63)), id="wrapped around i64"),
    ],
)
def test_an_invalid_entry_is_refused_and_keeps_the_window(asked: ReqEntry) -> None:
    """§7.2.2 and R22: without a change of generation nothing happens."""
    assert apply(HELD, asked)[:3] == (HELD, EntryStatus.BAD_ENTRY, 0)


@pytest.mark.parametrize("first_pos", [-1, -(1 << 63), (1 << 63) - 1])
def test_first_pos_says_nothing_without_rows(first_pos: int) -> None:
    """R15, §6.3."""
    outcome = apply(HELD, no_rows(16, first_pos=first_pos))
    assert outcome[:2] == (HELD, EntryStatus.PARTIAL_WINDOW)


@pytest.mark.parametrize("token", [-1, 512, -(1 << 31), (1 << 31) - 1])
def test_an_anchor_token_outside_the_vocabulary_is_refused_only_when_it_is_drafted_from(
    token: int,
) -> None:
    """R28."""
    drafted = apply(HELD, entry(16, 1, anchor_token=token))
    assert drafted[:3] == (HELD, EntryStatus.BAD_ENTRY, 0)
    appended = apply(HELD, entry(16, 1, anchor_token=token, flags=0))
    assert appended[:2] == (Slot(GEN, Window(10, 16)), EntryStatus.OK)


@pytest.mark.parametrize("token", [0, 511])
def test_the_first_and_the_last_token_are_drafted_from(token: int) -> None:
    """R28: the vocabulary is `[0, vocab)`."""
    assert apply(VACANT, entry(0, 1, anchor_token=token)).status is EntryStatus.OK


def test_an_anchor_at_max_model_len_works_and_one_behind_it_is_refused() -> None:
    """R30."""
    assert apply(VACANT, entry(992, 8)).status is EntryStatus.OK
    assert apply(VACANT, entry(993, 8)).status is EntryStatus.BAD_ENTRY


# --- step 3: rows ---


def test_rows_into_an_empty_window_start_it() -> None:
    """§7.2.3."""
    assert apply(VACANT, entry(40, 3)).slot.window == Window(40, 42)


def test_rows_right_behind_the_window_extend_it() -> None:
    """§7.2.3: `p0 = hi + 1` is no gap."""
    assert apply(HELD, entry(16, 2)).slot.window == Window(10, 17)


def test_rows_behind_a_gap_start_the_window_anew() -> None:
    """§7.2.3: `p0 > hi + 1`."""
    assert apply(HELD, entry(17, 2)).slot.window == Window(17, 18)


def test_rows_over_held_ones_roll_back_to_their_first_position() -> None:
    """§7.2.3, §7.1: the same request at a lower position."""
    assert apply(HELD, entry(12, 1)).slot.window == Window(10, 12)


def test_rows_before_the_window_replace_it() -> None:
    """§7.2.3: `lo = min(lo, p0)`, everything from p0 on is dropped."""
    assert apply(HELD, entry(4, 2)).slot.window == Window(4, 5)


def test_the_window_keeps_its_last_w_rows() -> None:
    """§7.2.3: `lo = max(lo, hi - W + 1)`."""
    outcome = apply(HELD, entry(16, 8))
    assert outcome[:3] == (Slot(GEN, Window(16, 23)), EntryStatus.OK, 8)
    assert apply(HELD, entry(16, 4)).slot.window == Window(12, 19)


def test_an_entry_without_rows_rolls_back_to_its_anchor() -> None:
    """§7.2.3."""
    outcome = apply(HELD, no_rows(13))
    assert outcome[:3] == (Slot(GEN, Window(10, 12)), EntryStatus.PARTIAL_WINDOW, 3)


def test_an_entry_without_rows_beyond_the_window_is_refused() -> None:
    """§7.2.3: `hi + 1 >= anchor_pos` is required."""
    assert apply(HELD, no_rows(17))[:3] == (HELD, EntryStatus.BAD_ENTRY, 0)


@pytest.mark.parametrize("anchor_pos", [10, 9, 1, -1, -(1 << 63)])
def test_an_anchor_at_or_before_the_window_empties_it_and_is_refused_with_no_rows(
    anchor_pos: int,
) -> None:
    """R16: the formula for window_rows gives nothing or less there."""
    outcome = apply(HELD, no_rows(anchor_pos))
    assert outcome[:3] == (Slot(GEN, EMPTY), EntryStatus.BAD_ENTRY, 0)


def test_a_roll_back_to_position_zero_is_ok_and_empties_the_window() -> None:
    """R16, R17: nothing is expected below position 0."""
    assert apply(HELD, no_rows(0))[:3] == (Slot(GEN, EMPTY), EntryStatus.OK, 0)


def test_the_block_alone_drafts_at_position_zero_of_an_empty_window() -> None:
    """R17: hi of an empty window counts as −1."""
    for slot in (VACANT, Slot(GEN, EMPTY)):
        assert apply(slot, no_rows(0))[:3] == (Slot(GEN, EMPTY), EntryStatus.OK, 0)


def test_an_empty_window_has_nothing_before_a_later_anchor() -> None:
    """R17."""
    assert apply(VACANT, no_rows(1))[:3] == (Slot(GEN, EMPTY), EntryStatus.BAD_ENTRY, 0)


def test_a_negative_anchor_is_refused_without_rows_too() -> None:
    """R18: no status but an error keeps window_rows <= min(W, anchor_pos)."""
    assert apply(VACANT, no_rows(-1)).status is EntryStatus.BAD_ENTRY


# --- steps 4 and 5: what is held and what is expected ---


@pytest.mark.parametrize(
    ("first_pos", "n_rows", "status", "window_rows"),
    [
        (0, 3, EntryStatus.OK, 3),
        (0, 8, EntryStatus.OK, 8),
        (1, 3, EntryStatus.PARTIAL_WINDOW, 3),
        (100, 7, EntryStatus.PARTIAL_WINDOW, 7),
        (100, 8, EntryStatus.OK, 8),
    ],
)
def test_a_window_is_whole_when_it_reaches_back_w_rows_or_to_position_zero(
    first_pos: int, n_rows: int, status: EntryStatus, window_rows: int
) -> None:
    """§7.2.4, §7.2.5: `expected = min(W, anchor_pos)`."""
    assert apply(VACANT, entry(first_pos, n_rows))[1:3] == (status, window_rows)


def test_an_append_to_a_short_window_is_ok() -> None:
    """R19: PARTIAL_WINDOW is defined under NEED_DRAFT."""
    assert apply(VACANT, entry(100, 2, flags=0))[1:3] == (EntryStatus.OK, 2)


def test_the_parts_of_the_rule_serve_a_ring_as_well() -> None:
    """§7.3: rank 0's ring keeps `[lo, hi]` by the same rule."""
    assert extended(Window(0, 7), 8, 3, 8) == Window(3, 10)
    assert rolled_back(Window(3, 10), 5) == Window(3, 4)
    assert rolled_back(Window(3, 10), 3) == EMPTY
    assert rows_before(Window(3, 10), 11, 8) == 8
    assert rows_before(EMPTY, 5, 8) == 0
    assert rows_before(Window(3, 4), 100, 8) == 0
