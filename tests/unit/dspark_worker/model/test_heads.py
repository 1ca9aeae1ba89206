"""Sampling (spec §6): the chain, the confidence's token, margins."""

import torch

from dspark_worker.model.heads import Heads
from dspark_worker.model.linear import PlainLinear
from dspark_worker.model.norms import RmsNorm


def heads() -> Heads:
    """Vocabulary 4, D 2, m 4: the Markov head says "after t comes t + 1"."""
    successor = torch.eye(4).roll(1, 0)
    confidence = torch.cat((torch.zeros(2), torch.arange(4.0)))
    return Heads(
        norm=RmsNorm(torch.ones(2), 1e-20),
        head=PlainLinear(torch.ones(4, 2)),
        markov_embed=torch.eye(4),
        markov_head=successor,
        confidence=confidence,
    )


def test_each_token_is_drafted_under_the_one_before_and_confidence_sees_that_one() -> None:
    sampled = heads().sample(
        torch.zeros(1, 3, 4), torch.zeros(1, 3, 2), torch.tensor([2]), 3, want_margin=True
    )
    assert sampled.ids.tolist() == [[3, 0, 1]]
    assert sampled.conf_logit.tolist() == [[2.0, 3.0, 0.0]]
    assert sampled.margin.tolist() == [[1.0, 1.0, 1.0]]


def test_of_equal_logits_the_lowest_id_wins() -> None:
    """§6, and rank 0's own rule."""
    base = torch.zeros(1, 1, 4)
    base[0, 0, 1] = 1.0  # meets the bias of token 3 after token 2
    sampled = heads().sample(base, torch.zeros(1, 1, 2), torch.tensor([2]), 1, want_margin=True)
    assert sampled.ids.tolist() == [[1]]
    assert sampled.margin.tolist() == [[0.0]]


def test_the_chain_ends_at_the_number_of_steps_asked_for() -> None:
    sampled = heads().sample(
        torch.zeros(2, 3, 4), torch.zeros(2, 3, 2), torch.tensor([2, 0]), 2, want_margin=False
    )
    assert sampled.ids.tolist() == [[3, 0], [1, 2]]
    assert sampled.margin.tolist() == [[0.0, 0.0]] * 2


def test_base_logits_read_the_normed_hidden_state() -> None:
    base = heads().base_logits(torch.tensor([[[3.0, 3.0]]], dtype=torch.bfloat16))
    assert base.dtype == torch.float32
    assert base.tolist() == [[[2.0] * 4]]
