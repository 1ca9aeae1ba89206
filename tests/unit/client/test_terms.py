"""The engine's terms, what refuses to start (§12), and the HELLO that follows (§6.2)."""

from dataclasses import replace
from typing import Any

import pytest

from dsparkctl.client.terms import EngineTerms, TermsError, hello, refusal
from dsparkctl.contract.layout import pack

LIVE = EngineTerms(
    num_spec=5,
    window=128,
    hidden=5120,
    tap_layer_ids=(37, 38, 39),
    noise_token_id=128799,
    vocab_size=129280,
    max_model_len=327680,
    max_slots=4,
    tp_size=2,
    dtype="bfloat16",
    draft_sample_method="greedy",
    draft_topk=None,
    watermarking=False,
    block_size=5,
)


def test_the_live_engine_may_start() -> None:
    assert refusal(LIVE) == ""
    assert refusal(replace(LIVE, dtype="torch.bfloat16", draft_topk=0)) == ""


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"draft_sample_method": "probabilistic"}, "draft_sample_method is probabilistic"),
        ({"draft_sample_method": ""}, "draft_sample_method is "),
        ({"draft_topk": 8}, "dspark_draft_topk is 8"),
        ({"watermarking": True}, "watermarking is on"),
        ({"dtype": "float16"}, "taps are float16"),
        ({"dtype": "torch.float32"}, "taps are torch.float32"),
        ({"num_spec": 4}, "num_speculative_tokens is 4: the drafter's block has 5"),
        ({"tap_layer_ids": ()}, "0 taps"),
        ({"tap_layer_ids": (1, 2, 3, 4, 5)}, "5 taps"),
        ({"max_slots": 33}, "max_num_seqs is 33"),
        ({"max_slots": 0}, "max_num_seqs is 0"),
        ({"window": 5}, "the window has 5 rows: a decode step 6"),
    ],
)
def test_each_obstacle_is_named_and_stops_the_hello(changed: dict[str, Any], reason: str) -> None:
    """§12"""
    terms = replace(LIVE, **changed)
    assert refusal(terms).startswith(reason)
    assert "; " not in refusal(terms)
    with pytest.raises(TermsError, match=r"^remote drafting cannot start: "):
        hello(terms, bytes(32), bytes(32))


def test_a_window_that_just_holds_a_decode_step_will_do() -> None:
    """§4.3"""
    assert refusal(replace(LIVE, window=6)) == ""


def test_all_obstacles_stand_on_one_line() -> None:
    found = refusal(replace(LIVE, watermarking=True, draft_topk=1, dtype="float16"))
    assert found.count("; ") == 2
    assert found.isprintable()


def test_the_hello_says_what_the_engine_says() -> None:
    """§6.2, field by field."""
    found = hello(LIVE, b"d" * 32, b"m" * 32)
    assert (found.num_spec, found.window, found.hidden, found.n_taps) == (5, 128, 5120, 3)
    assert (found.tap_layer_ids, found.row_bytes) == ((37, 38, 39, 0), 30720)
    assert (found.noise_token_id, found.vocab_size) == (128799, 129280)
    assert (found.max_model_len, found.max_slots, found.max_rows_per_step) == (327680, 4, 512)
    assert (found.payload_kind, found.sample_mode, found.tp_size) == (1, 1, 2)
    assert (found.drafter_identity, found.markov_identity) == (b"d" * 32, b"m" * 32)
    assert len(pack(found)) == 192


def test_another_engine_has_another_hello() -> None:
    terms = replace(
        LIVE,
        num_spec=3,
        block_size=3,
        window=8,
        hidden=64,
        tap_layer_ids=(1, 2),
        max_slots=2,
        max_model_len=99,
        tp_size=1,
        noise_token_id=7,
        vocab_size=512,
    )
    found = hello(terms, b"d" * 32, bytes(32))
    assert (found.num_spec, found.window, found.row_bytes) == (3, 8, 2 * 64 * 2)
    assert (found.max_slots, found.max_rows_per_step, found.max_model_len) == (2, 16, 99)
    assert (found.tp_size, found.noise_token_id, found.vocab_size) == (1, 7, 512)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"noise_token_id": 129280}, "noise_token_id: expected an id below vocab_size"),
        ({"vocab_size": 0}, "vocab_size: "),
        ({"max_model_len": 2**32}, "max_model_len: "),
        ({"hidden": 0}, "hidden: "),
        ({"tap_layer_ids": (-1, 2, 3)}, "tap_layer_ids.0: "),
    ],
)
def test_a_value_that_does_not_fit_a_hello_is_one_line(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(TermsError) as caught:
        hello(replace(LIVE, **changed), bytes(32), bytes(32))
    assert str(caught.value).startswith(f"remote drafting cannot start: {field}")
    assert str(caught.value).isprintable()
