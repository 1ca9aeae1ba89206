"""What a round means to the breaker and to the slots (§7.4, §9.2, §10)."""

import pytest

from dsparkctl.contract.codes import NEED_DRAFT, NEW_GEN, EntryStatus
from dsparkctl.contract.records import ReqEntry, ReqStatus
from dsparkctl.state.verdict import Verdict, dirty_slots, verdict_of

DRAFT, APPEND = NEED_DRAFT, NEW_GEN
ERRORS = [EntryStatus.STALE_GENERATION, EntryStatus.BAD_ENTRY, EntryStatus.INTERNAL]


def entries(*flags: int) -> list[ReqEntry]:
    """One entry for each; slots count from 5."""
    return [ReqEntry(5 + i, flag, 0, 0, 1, 0, 1, 1, 1) for i, flag in enumerate(flags)]


def statuses(*codes: int) -> list[ReqStatus]:
    return [ReqStatus(code, 0, 1) for code in codes]


@pytest.mark.parametrize(
    ("flags", "codes", "verdict"),
    [
        ([DRAFT], [EntryStatus.OK], Verdict.SUCCESS),
        ([DRAFT, DRAFT], [EntryStatus.INTERNAL, EntryStatus.OK], Verdict.SUCCESS),
        ([DRAFT, DRAFT], [EntryStatus.OK, EntryStatus.BAD_ENTRY], Verdict.SUCCESS),
        ([DRAFT, APPEND], [EntryStatus.BAD_ENTRY, EntryStatus.OK], Verdict.FAILURE),
        ([APPEND, DRAFT], [EntryStatus.OK, EntryStatus.INTERNAL], Verdict.FAILURE),
        ([DRAFT, APPEND], [EntryStatus.OK, EntryStatus.BAD_ENTRY], Verdict.SUCCESS),
    ],
)
def test_one_request_that_got_drafts_makes_a_success_and_none_a_failure(
    flags: list[int], codes: list[int], verdict: Verdict
) -> None:
    """§10: "per-request errors for every request that needed drafts"; appends do not count."""
    assert verdict_of(entries(*flags), statuses(*codes)) is verdict


@pytest.mark.parametrize("code", ERRORS)
def test_every_error_of_an_entry_is_one(code: EntryStatus) -> None:
    """§9.2."""
    assert verdict_of(entries(DRAFT, DRAFT), statuses(code, code)) is Verdict.FAILURE


def test_a_step_of_appends_alone_is_neutral() -> None:
    """§10, v1.8: it never exercises drafting."""
    assert verdict_of(entries(APPEND, 0), statuses(0, 0)) is Verdict.NEUTRAL
    assert verdict_of([], []) is Verdict.NEUTRAL


@pytest.mark.parametrize("code", ERRORS)
def test_c12_an_append_whose_entries_fail_is_neutral_and_its_slots_are_dirty(
    code: EntryStatus,
) -> None:
    """C12: "every request that needed drafts" is vacuous."""
    asked, got = entries(APPEND, APPEND), statuses(code, 0)
    assert verdict_of(asked, got) is Verdict.NEUTRAL
    assert dirty_slots(asked, got) == [5]


def test_c13_short_windows_everywhere_are_a_success_and_make_their_slots_dirty() -> None:
    """C13, §9.2: the drafts are used; the slot resyncs."""
    asked = entries(DRAFT, DRAFT)
    got = statuses(EntryStatus.PARTIAL_WINDOW, EntryStatus.PARTIAL_WINDOW)
    assert verdict_of(asked, got) is Verdict.SUCCESS
    assert dirty_slots(asked, got) == [5, 6]


def test_every_status_but_ok_makes_its_own_slot_dirty_and_no_other() -> None:
    """§7.4."""
    codes = [EntryStatus.OK, *ERRORS, EntryStatus.PARTIAL_WINDOW, EntryStatus.OK]
    assert dirty_slots(entries(*[DRAFT] * 6), statuses(*codes)) == [6, 7, 8, 9]


def test_a_reply_for_another_number_of_entries_is_a_fault_of_ours() -> None:
    with pytest.raises(ValueError, match="argument"):
        verdict_of(entries(DRAFT, DRAFT), statuses(0))
    with pytest.raises(ValueError, match="argument"):
        dirty_slots(entries(DRAFT), statuses(0, 0))
