"""The committed target and drafter: drafts are good, earned, and show every classical mistake.

Through the worker's own loaded drafter and a plain greedy loop; nothing of the wire.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor

from dspark_worker.model.attention import Attention
from dspark_worker.model.drafter import TorchDrafter
from dspark_worker.model.linear import PlainLinear
from dsparkctl.checkpoint.digest import State, verify_files
from dsparkctl.checkpoint.files import find_files
from dsparkctl.checkpoint.inspection import Format, inspect
from dsparkctl.checkpoint.model_config import read_model_config
from dsparkctl.contract.receipt import parse_receipt
from dsparkctl.engine.prompts import NOISE_TOKEN_ID, VOCABULARY, prompts
from dsparkctl.engine.target import Span, Target, TargetWeights, read_weights
from tests.unit.dspark_worker.model import tiny
from tests.unit.engine.greedy_loop import MAX_MODEL_LEN, Outcome, distinct_fourgrams, speculate

CHECKPOINT = Path(__file__).parents[3] / "dsparkctl" / "demo" / "checkpoint"
PROMPTS = prompts(2026, 8)
N_TOKENS = 96
FEW_TOKENS = 32
"""Enough where nearly every draft is refused, and a round gives one token."""
CLEARLY = 0.7
"""A mistake costs at least three drafts in ten."""


def target(*, layers_lower: int = 0) -> Target:
    config, tensors = read_weights(CHECKPOINT)
    taps = tuple(layer - layers_lower for layer in config.tap_layer_ids)
    config = dataclasses.replace(config, tap_layer_ids=taps)
    return Target(TargetWeights(config, tensors), len(PROMPTS), MAX_MODEL_LEN)


def drafter(kv_quant: str = "auto") -> TorchDrafter:
    return tiny.load(CHECKPOINT, kv_quant=kv_quant, max_slots=len(PROMPTS))


def run(
    *,
    n_tokens: int = N_TOKENS,
    k: int = 5,
    early: int = 0,
    layers_lower: int = 0,
    kv_quant: str = "auto",
    spoil: Callable[[Tensor], Tensor] = lambda rows: rows,
) -> Outcome:
    """The whole loop over the held-out prompts."""
    return speculate(
        target(layers_lower=layers_lower),
        drafter(kv_quant),
        PROMPTS,
        n_tokens,
        k,
        early=early,
        spoil=spoil,
    )


@pytest.fixture(scope="module")
def right() -> Outcome:
    return run()


def test_the_folder_is_a_checkpoint_of_the_release_and_its_receipt_speaks_for_it() -> None:
    files = find_files(CHECKPOINT)
    config = read_model_config(files)
    found = inspect(files, config)
    assert found.ok
    assert {Format.FP8, Format.FP4} <= {row.format for row in found.rows}
    receipt = parse_receipt((CHECKPOINT / "DSPARK_COPY_DONE").read_bytes())
    assert {file.name for file in receipt.files} == {path.name for path in files.sources}
    states = {finding.state for finding in verify_files(receipt.files, CHECKPOINT)}
    assert states == {State.OK}
    assert sum(path.stat().st_size for path in CHECKPOINT.iterdir()) < 4 << 20


def test_target_and_drafter_are_one_model() -> None:
    """Of one shape, with the same embeddings and head (§2), and sizes that EXL3 takes."""
    config = read_model_config(find_files(CHECKPOINT))
    stated, tensors = read_weights(CHECKPOINT)
    assert (config.vocab_size, config.hidden) == (stated.vocab_size, stated.hidden)
    assert config.tap_layer_ids == stated.tap_layer_ids
    assert (config.num_spec, config.window, config.n_taps) == (5, 32, 3)
    assert config.vocab_size == len(VOCABULARY)
    assert config.noise_token_id == NOISE_TOKEN_ID
    for size in (config.vocab_size, config.hidden, config.expert_hidden, config.markov_rank):
        assert size % 128 == 0
    model = drafter()._model
    assert torch.equal(model.embed, tensors["embed"].float())
    assert isinstance(model.heads.head, PlainLinear)
    assert torch.equal(model.heads.head.weight, tensors["head"].float())


def test_on_held_out_prompts_at_least_two_and_a_half_drafts_a_round_are_accepted(
    right: Outcome,
) -> None:
    assert right.mean >= 2.5
    assert run(kv_quant="none").mean >= 2.5


def test_speculation_says_what_the_target_says_alone(right: Outcome) -> None:
    alone = target()
    spans = [Span(slot, 0, prompt) for slot, prompt in enumerate(PROMPTS)]
    said: list[list[int]] = [[] for _ in PROMPTS]
    for _ in range(N_TOKENS):
        best, start, following = alone.forward(spans).logits.argmax(-1).tolist(), 0, []
        for span in spans:
            start += len(span.tokens)
            token = best[start - 1]
            said[span.slot].append(token)
            following.append(Span(span.slot, span.first_pos + len(span.tokens), [token]))
        spans = following
    assert [text[:N_TOKENS] for text in right.texts] == said
    shorter = run(k=4)
    assert [text[:N_TOKENS] for text in shorter.texts] == said
    assert shorter.mean >= 2.5


def test_most_of_what_is_said_is_said_once(right: Outcome) -> None:
    assert distinct_fourgrams(right.texts) >= 0.5


def test_without_tap_rows_not_half_as_many_are_accepted(right: Outcome) -> None:
    assert run(n_tokens=FEW_TOKENS, spoil=torch.zeros_like).mean < right.mean / 2


def test_a_block_that_stands_one_position_early_shows(right: Outcome) -> None:
    """Pitfall 3 of the specification's §13."""
    assert run(n_tokens=FEW_TOKENS, early=1).mean < CLEARLY * right.mean


def test_a_causal_block_shows(right: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pitfall 6: no query may be kept from the later ones of its block."""
    attend = Attention.attend

    def causal(self: Attention, q: Tensor, keys: Tensor, hidden: Tensor | None) -> Tensor:
        n_queries = q.shape[1] // self.n_heads
        later = torch.ones(n_queries, n_queries, dtype=torch.bool).triu(1)
        later = F.pad(later, (keys.shape[1] - n_queries, 0)).repeat_interleave(self.n_heads, 0)
        return attend(self, q, keys, later if hidden is None else later | hidden)

    monkeypatch.setattr(Attention, "attend", causal)
    assert run(n_tokens=FEW_TOKENS).mean < CLEARLY * right.mean


def test_taps_of_the_layers_before_show(right: Outcome) -> None:
    """Pitfall 7."""
    assert run(n_tokens=FEW_TOKENS, layers_lower=1).mean < CLEARLY * right.mean


def test_a_skipped_ffn_norm_shows(right: Outcome) -> None:
    """Pitfall 1: gains that stay 1."""
    spoilt = drafter()
    blocks = tuple(
        block._replace(
            ffn_norm=block.ffn_norm._replace(weight=torch.ones_like(block.ffn_norm.weight))
        )
        for block in spoilt._model.blocks
    )
    spoilt._model = spoilt._model._replace(blocks=blocks)
    assert speculate(target(), spoilt, PROMPTS, FEW_TOKENS).mean < CLEARLY * right.mean


def test_confidence_tells_accepted_drafts_from_refused_ones() -> None:
    """Most is refused close behind a prompt's wrong words, so many prompts are begun here."""
    many = [speculate(target(), drafter(), prompts(seed, 8), 40) for seed in range(3)]
    judged = [one for outcome in many for one in outcome.judged]
    accepted = [one.confidence for one in judged if one.is_accepted]
    refused = [one.confidence for one in judged if not one.is_accepted]
    assert len(refused) >= 20, "too few to speak of"
    assert sum(accepted) / len(accepted) > sum(refused) / len(refused) + 0.05
    ordered = sum((a > r) + 0.5 * (a == r) for a in accepted for r in refused)
    assert ordered / len(accepted) / len(refused) > 0.65
