"""The self-test draft: its own slot, the same answer every time, and every way to fail."""

import pytest

from dspark_worker.drafter import Draft
from dspark_worker.scripted import ScriptedDrafter
from dspark_worker.selftest import SelfTest
from tests.unit.dspark_worker.fake import MAX_LEN, OWN, SLOTS, VOCAB, FakeDrafter, N, W, good_draft


def fitting() -> FakeDrafter:
    return FakeDrafter()


def test_it_uses_the_spare_slot_alone_and_passes() -> None:
    drafter = fitting()
    test = SelfTest(OWN, drafter)
    assert (test.run(), test.run()) == ("", "")
    assert {part.slot for parts in drafter.appended for part in parts} == {SLOTS}
    assert {r.slot for asked in drafter.asked for r in asked} == {SLOTS}
    assert drafter.max_model_len == MAX_LEN


@pytest.mark.parametrize(("window", "max_model_len", "n_rows"), [(W, 20, 4), (2, 20, 2), (W, 1, 1)])
def test_its_rows_fit_window_and_model_length(window: int, max_model_len: int, n_rows: int) -> None:
    drafter = fitting()
    own = OWN._replace(window=window, max_model_len=max_model_len)
    assert SelfTest(own, drafter).run() == ""
    assert drafter.appended[0][0].n_rows == n_rows


def test_the_scripted_drafter_passes_it() -> None:
    drafter = ScriptedDrafter(
        num_spec=N, window=W, vocab_size=VOCAB, row_bytes=OWN.row_bytes, max_slots=SLOTS
    )
    assert SelfTest(OWN, drafter).run() == ""


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        ("append_raises", "append raised"),
        ("append_faults", "append fault"),
        ("draft_raises", "draft raised"),
        ("draft_faults", "draft fault"),
        ("draft_forgets", "raised"),
    ],
)
def test_a_fault_or_an_exception_is_a_reason_and_never_escapes(fault: str, word: str) -> None:
    drafter = fitting()
    getattr(drafter, fault).add(SLOTS)
    assert word in SelfTest(OWN, drafter).run()


@pytest.mark.parametrize(
    "draft",
    [
        good_draft(N)._replace(ids=[VOCAB, 0, 0]),
        good_draft(N)._replace(confidence=[float("nan"), 0.0, 0.0]),
        good_draft(N)._replace(confidence=[1.5, 0.0, 0.0]),
    ],
)
def test_values_that_rank_0_would_refuse_are_a_reason(draft: Draft) -> None:
    drafter = fitting()
    drafter.draft_says[SLOTS] = draft
    assert SelfTest(OWN, drafter).run() != ""


def test_other_ids_than_at_start_are_a_reason_until_they_come_back() -> None:
    drafter = fitting()
    test = SelfTest(OWN, drafter)
    assert test.run() == ""
    drafter.draft_says[SLOTS] = good_draft(N)._replace(ids=[1, 1, 1])
    assert "at start they were" in test.run()
    drafter.draft_says.clear()
    assert test.run() == ""
