"""Sessions and sequence numbers (§6.2, §7.5, R1 to R8, R36)."""

from typing import Any

import pytest

from dsparkctl.contract.codes import FrameStatus
from dsparkctl.contract.records import Hello
from dsparkctl.state.session import ACCEPTED, Session, judge_frame, judge_hello, opened

OWN = Hello(
    proto_min=1,
    proto_max=1,
    num_spec=5,
    window=128,
    hidden=5120,
    n_taps=3,
    tap_layer_ids=(37, 38, 39, 0),
    payload_kind=1,
    row_bytes=30720,
    noise_token_id=128799,
    vocab_size=129280,
    max_model_len=327680,
    max_slots=4,
    max_rows_per_step=512,
    sample_mode=1,
    tp_size=2,
    reserved=0,
    drafter_identity=b"d" * 32,
    markov_identity=b"m" * 32,
    client_name=b"spark-a rank0",
)
ID = 0xC0FFEE01
OPEN = Session(ID, last_seq=5, max_model_len=1000)


def status(**changed: Any) -> FrameStatus:
    """What a HELLO gets that differs from the worker's own terms in these fields."""
    verdict = judge_hello(OWN._replace(**changed), ID, OWN)
    assert bool(verdict.reason) == (verdict.status is not FrameStatus.OK)
    return verdict.status


# --- HELLO ---


def test_a_hello_on_the_workers_own_terms_is_accepted() -> None:
    """§6.2."""
    assert judge_hello(OWN, ID, OWN) == ACCEPTED


@pytest.mark.parametrize(("low", "high"), [(1, 1), (0, 1), (1, 9), (0, 0xFFFFFFFF)])
def test_a_range_of_protocols_that_holds_ours_is_accepted(low: int, high: int) -> None:
    """§6.2: the worker chooses."""
    assert status(proto_min=low, proto_max=high) is FrameStatus.OK


@pytest.mark.parametrize(("low", "high"), [(2, 2), (0, 0), (2, 1), (9, 1)])
def test_a_range_of_protocols_without_ours_is_bad_version(low: int, high: int) -> None:
    """§9.1."""
    assert status(proto_min=low, proto_max=high) is FrameStatus.BAD_VERSION


@pytest.mark.parametrize("field", ["drafter_identity", "markov_identity"])
def test_either_identity_that_differs_is_an_identity_mismatch_naming_both(field: str) -> None:
    """§6.2, §9.1: both digests are logged."""
    other: dict[str, Any] = {field: bytes(32)}
    verdict = judge_hello(OWN._replace(**other), ID, OWN)
    assert verdict.status is FrameStatus.IDENTITY_MISMATCH
    assert bytes(32).hex() in verdict.reason
    assert getattr(OWN, field).hex() in verdict.reason


@pytest.mark.parametrize(
    "changed",
    [
        {"num_spec": 4},
        {"window": 64},
        {"hidden": 4096},
        {"n_taps": 2},
        {"tap_layer_ids": (38, 37, 39, 0)},
        {"payload_kind": 2},
        {"payload_kind": 0},
        {"row_bytes": 10240},
        {"noise_token_id": 0},
        {"vocab_size": 129281},
        {"sample_mode": 0},
    ],
    ids=lambda changed: "-".join(changed),
)
def test_each_term_that_differs_is_a_config_mismatch(changed: dict[str, Any]) -> None:
    """§6.2."""
    assert status(**changed) is FrameStatus.CONFIG_MISMATCH


def test_mainx_is_refused_even_by_a_worker_that_names_it() -> None:
    """§3, §6.2: payload kind 2 is reserved."""
    mainx = OWN._replace(payload_kind=2)
    assert judge_hello(mainx, ID, mainx).status is FrameStatus.CONFIG_MISMATCH


@pytest.mark.parametrize("field", ["max_model_len", "max_slots", "max_rows_per_step"])
def test_a_client_may_ask_for_less_than_the_worker_has_but_not_for_more(field: str) -> None:
    """R6."""
    limit = getattr(OWN, field)
    assert status(**{field: limit - 1}) is FrameStatus.OK
    assert status(**{field: limit + 1}) is FrameStatus.CONFIG_MISMATCH
    assert status(**{field: 0}) is FrameStatus.CONFIG_MISMATCH


@pytest.mark.parametrize(
    "changed",
    [{"tp_size": 8}, {"client_name": b""}, {"reserved": 7}],
    ids=lambda changed: "-".join(changed),
)
def test_what_is_informative_or_reserved_is_ignored(changed: dict[str, Any]) -> None:
    """R6, R7."""
    assert status(**changed) is FrameStatus.OK


def test_all_four_tap_ids_count() -> None:
    """R7: also those behind n_taps."""
    assert status(tap_layer_ids=(37, 38, 39, 1)) is FrameStatus.CONFIG_MISMATCH


def test_session_zero_is_malformed() -> None:
    """R7."""
    assert judge_hello(OWN, 0, OWN).status is FrameStatus.MALFORMED


def test_hello_is_judged_session_first_then_proto_identity_and_terms() -> None:
    """R36: of several faults the first in this order is told."""
    wrong = OWN._replace(proto_min=2, drafter_identity=bytes(32), num_spec=4, max_slots=99)
    assert judge_hello(wrong, 0, OWN).status is FrameStatus.MALFORMED
    assert judge_hello(wrong, ID, OWN).status is FrameStatus.BAD_VERSION
    wrong = wrong._replace(proto_min=1)
    assert judge_hello(wrong, ID, OWN).status is FrameStatus.IDENTITY_MISMATCH
    wrong = wrong._replace(drafter_identity=OWN.drafter_identity)
    assert judge_hello(wrong, ID, OWN).status is FrameStatus.CONFIG_MISMATCH


# --- sessions ---


def test_a_new_session_starts_at_seq_zero() -> None:
    """§7.5, R3: so that seq 1 is good."""
    hello = OWN._replace(max_model_len=500)
    for before in (None, OPEN):
        assert opened(before, 9, hello) == (Session(9, 0, 500), True)


def test_the_same_session_goes_on_with_its_seq_and_takes_the_new_clamp() -> None:
    """R3, R6."""
    assert opened(OPEN, ID, OWN) == (Session(ID, 5, OWN.max_model_len), False)


# --- frames ---


def test_a_frame_above_the_last_seq_is_accepted_gaps_allowed() -> None:
    """§6.1, §7.5."""
    for seq in (6, 7, 1 << 40, (1 << 64) - 1):
        assert judge_frame(OPEN, True, ID, seq) == ACCEPTED


@pytest.mark.parametrize("seq", [5, 4, 1, 0])
def test_a_frame_at_or_below_the_last_seq_is_stale(seq: int) -> None:
    """§7.5."""
    assert judge_frame(OPEN, True, ID, seq).status is FrameStatus.STALE_SEQ


def test_seq_zero_is_stale_from_the_start() -> None:
    """§7.5: seq starts at 1."""
    assert judge_frame(Session(ID, 0, 9), True, ID, 0).status is FrameStatus.STALE_SEQ


def test_a_frame_before_any_hello_has_no_session() -> None:
    """§9.1."""
    assert judge_frame(None, False, ID, 6).status is FrameStatus.NO_SESSION


def test_a_known_session_on_a_connection_without_hello_has_no_session() -> None:
    """R4."""
    assert judge_frame(OPEN, False, ID, 6).status is FrameStatus.NO_SESSION


def test_another_session_than_the_connections_has_no_session() -> None:
    """§7.5, before its seq is looked at (R36)."""
    assert judge_frame(OPEN, True, ID + 1, 0).status is FrameStatus.NO_SESSION
