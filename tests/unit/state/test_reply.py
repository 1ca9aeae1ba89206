"""What rank 0 refuses in a STEP reply (§6.3 v1.4), clause by clause."""

from typing import Any

import pytest

from dsparkctl.contract.codes import NEED_DRAFT, EntryStatus
from dsparkctl.contract.messages import StepReply
from dsparkctl.contract.records import ReplyHeader, ReqEntry, ReqStatus
from dsparkctl.state.reply import Asked, n_consumed, refusal

NAN, INF = float("nan"), float("inf")


def entry(flags: int = NEED_DRAFT, n_out: int = 0, anchor_pos: int = 40) -> ReqEntry:
    return ReqEntry(0, flags, 0, n_out, 7, anchor_pos - 1, 1, 1, anchor_pos)


def asked(*entries: ReqEntry) -> Asked:
    return Asked(step_id=9, entries=entries, num_spec=3, window=8, vocab_size=100)


def reply(
    *statuses: ReqStatus,
    ids: Any = (1, 2, 3),
    confidence: Any = (0.5, 0.25, 1.0),
    margin: Any = None,
    **head: Any,
) -> StepReply:
    fields = {"step_id": 9, "n_req": len(statuses), "num_spec": 3, **head}
    header = ReplyHeader(**fields, reply_flags=0, worker_us=0, recv_to_send_us=0, reserved=(0, 0))
    return StepReply(header, statuses, tuple(ids), tuple(confidence), margin)


OK = ReqStatus(EntryStatus.OK, 8, 7)
BAD = ReqStatus(EntryStatus.BAD_ENTRY, 0, 7)
PARTIAL = ReqStatus(EntryStatus.PARTIAL_WINDOW, 3, 7)
ZEROS: dict[str, Any] = {"ids": (0, 0, 0), "confidence": (0.0, 0.0, 0.0)}
ASKED = asked(entry())


def test_good_replies_are_not_refused() -> None:
    """§6.3: drafts, a partial window, an append, an error with zeros, margins."""
    assert refusal(reply(OK), ASKED) == ""
    assert refusal(reply(PARTIAL), ASKED) == ""
    assert refusal(reply(OK, **ZEROS), asked(entry(flags=0))) == ""
    assert refusal(reply(BAD, **ZEROS), ASKED) == ""
    assert refusal(reply(OK, margin=(0.0, 1.5, 3e38)), ASKED) == ""


@pytest.mark.parametrize("head", [{"step_id": 8}, {"n_req": 2}, {"num_spec": 4}])
def test_another_shape_or_another_step_is_refused(head: dict[str, int]) -> None:
    """§6.3: shape and echoes."""
    assert next(iter(head)) in refusal(reply(OK, **head), ASKED)


def test_another_generation_is_refused() -> None:
    """§6.3, R21: the request's generation is echoed."""
    assert "generation 6" in refusal(reply(OK._replace(generation=6)), ASKED)


@pytest.mark.parametrize("status", [5, 77, 0xFFFF])
def test_a_status_that_is_no_code_is_refused(status: int) -> None:
    """§6.3, §9.2."""
    assert f"status {status}" in refusal(reply(OK._replace(status=status), **ZEROS), ASKED)


@pytest.mark.parametrize("status", list(EntryStatus))
@pytest.mark.parametrize("flags", [0, NEED_DRAFT])
def test_more_window_rows_than_can_be_are_refused_in_any_entry(
    status: EntryStatus, flags: int
) -> None:
    """§6.3: `window_rows > min(W, anchor_pos)`."""
    answer = reply(ReqStatus(status, 9, 7), **ZEROS)
    assert "window_rows 9" in refusal(answer, asked(entry(flags)))
    answer = reply(ReqStatus(status, 3, 7), **ZEROS)
    assert "window_rows 3" in refusal(answer, asked(entry(flags, anchor_pos=2)))


def test_a_negative_anchor_has_no_rows_and_its_refusal_reaches_no_other_entry() -> None:
    """R18: BAD_ENTRY with window_rows 0 is the one answer that a worker can give, and it stands."""
    negative = asked(entry(anchor_pos=-1))
    assert refusal(reply(BAD, **ZEROS), negative) == ""
    one_row = BAD._replace(window_rows=1)
    assert "window_rows 1" in refusal(reply(one_row, **ZEROS), negative)


def test_ok_with_a_short_window_is_refused_where_drafts_were_asked_for() -> None:
    """§6.3, §7.2.5; an append may be OK on a short window (R19)."""
    short = OK._replace(window_rows=7)
    assert "OK" in refusal(reply(short), ASKED)
    assert refusal(reply(short, **ZEROS), asked(entry(flags=0))) == ""


def test_partial_window_with_a_full_one_is_refused_where_drafts_were_asked_for() -> None:
    """§6.3, §7.2.5."""
    assert "PARTIAL_WINDOW" in refusal(reply(PARTIAL._replace(window_rows=8)), ASKED)
    assert refusal(reply(PARTIAL._replace(window_rows=7)), ASKED) == ""


@pytest.mark.parametrize("status", [OK, PARTIAL])
@pytest.mark.parametrize("draft_id", [-1, 100, -(1 << 31), (1 << 31) - 1])
def test_a_draft_outside_the_vocabulary_is_refused(status: ReqStatus, draft_id: int) -> None:
    """§6.3: drafts become the target's input ids."""
    assert f"draft id {draft_id}" in refusal(reply(status, ids=(1, draft_id, 3)), ASKED)


@pytest.mark.parametrize("confidence", [-0.001, 1.001, NAN, INF, -INF])
def test_a_confidence_outside_zero_to_one_is_refused(confidence: float) -> None:
    """§6.3."""
    assert "confidence" in refusal(reply(OK, confidence=(0.5, 0.5, confidence)), ASKED)


@pytest.mark.parametrize("margin", [-0.001, NAN, INF, -INF])
def test_a_margin_that_is_negative_or_not_finite_is_refused(margin: float) -> None:
    """§6.3, C19: checked whenever margins are there."""
    assert "margin" in refusal(reply(OK, margin=(margin, 0.0, 0.0)), ASKED)


@pytest.mark.parametrize("n_out", [0, 3, 4, 255])
def test_n_out_of_zero_or_above_n_means_all_positions(n_out: int) -> None:
    """§6.3 (v1.3), R26."""
    assert n_consumed(entry(n_out=n_out), OK, 3) == 3
    assert "draft id" in refusal(reply(OK, ids=(1, 2, 100)), asked(entry(n_out=n_out)))


def test_nothing_is_consumed_of_an_append_or_an_error() -> None:
    """§6.3."""
    assert n_consumed(entry(flags=0), OK, 3) == 0
    assert n_consumed(entry(), BAD, 3) == 0
    assert n_consumed(entry(n_out=2), PARTIAL, 3) == 2


NONZERO = [
    {"ids": (0, 0, 1)},
    {"confidence": (0.0, 0.0, 0.5)},
    {"confidence": (0.0, 0.0, NAN)},
    {"margin": (0.0, 0.0, 2.0)},
    {"margin": (0.0, 0.0, NAN)},
]


@pytest.mark.parametrize("values", NONZERO)
def test_an_entry_that_nobody_consumes_must_hold_zeros(values: dict[str, Any]) -> None:
    """§6.3, C20: NaN is not zero."""
    for answer, request in ((OK, entry(flags=0)), (BAD, entry())):
        assert "none is consumed" in refusal(reply(answer, **{**ZEROS, **values}), asked(request))


@pytest.mark.parametrize("values", NONZERO)
def test_the_tail_behind_n_out_must_hold_zeros(values: dict[str, Any]) -> None:
    """§6.3: positions from n_out on."""
    clean: dict[str, Any] = {"ids": (1, 2, 0), "confidence": (0.5, 0.5, 0.0)}
    assert refusal(reply(OK, **clean), asked(entry(n_out=2))) == ""
    assert "position 2" in refusal(reply(OK, **{**clean, **values}), asked(entry(n_out=2)))


def test_minus_zero_is_zero() -> None:
    """C20."""
    minus: dict[str, Any] = {"confidence": (-0.0,) * 3, "margin": (-0.0,) * 3}
    assert refusal(reply(BAD, **{**ZEROS, **minus}), ASKED) == ""


def test_each_entry_is_judged_by_its_own_values() -> None:
    """§6.3: the arrays are `[n_req][N]`."""
    two = asked(entry(flags=0), entry())
    values: dict[str, Any] = {
        "ids": (0, 0, 0, 1, 2, 3),
        "confidence": (0.0, 0.0, 0.0, 0.5, 0.5, 0.5),
    }
    assert refusal(reply(OK, OK, **values), two) == ""
    assert "entry 1" in refusal(reply(OK, OK._replace(window_rows=1), **values), two)
