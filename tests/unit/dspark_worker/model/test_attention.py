"""Attention alone: what the sink, padding and constant values must give (spec §5.3)."""

import pytest
import torch
from torch import Tensor

from dspark_worker.model.attention import Attention
from dspark_worker.model.kv_quant import KvQuant
from dspark_worker.model.linear import GroupedLinear, PlainLinear
from dspark_worker.model.norms import RmsNorm

N_HEADS, HEAD_DIM = 2, 8


def attention(sink: float) -> Attention:
    nothing = PlainLinear(torch.empty(0))
    norm = RmsNorm(torch.empty(0), 1e-20)
    return Attention(
        wq_a=nothing,
        q_norm=norm,
        wq_b=nothing,
        wkv=nothing,
        kv_norm=norm,
        sink=torch.full((N_HEADS,), sink),
        wo_a=GroupedLinear(torch.empty(0)),
        wo_b=nothing,
        n_heads=N_HEADS,
        rope_dim=4,
        n_groups=1,
        kv_quant=KvQuant.NONE,
    )


def queries(n_blocks: int = 1) -> Tensor:
    return torch.randn(n_blocks, 5 * N_HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("n_padding", [0, 3, 200])
def test_constant_values_without_a_sink_come_back_unchanged(n_padding: int) -> None:
    """Pitfall 4: padded slots that enter the softmax would pull the ones down."""
    keys = torch.cat((torch.ones(1, 7, HEAD_DIM), torch.zeros(1, n_padding, HEAD_DIM)), dim=1)
    hidden = (keys == 0).all(-1).unsqueeze(1)
    output = attention(-torch.inf).attend(queries(), keys, hidden)
    assert torch.allclose(output, torch.ones_like(output), atol=1e-6)


def test_the_sink_only_enters_the_denominator() -> None:
    """One key of score s and a sink of the same height share the weight evenly."""
    keys = torch.ones(1, 1, HEAD_DIM)
    q = torch.zeros(1, 5 * N_HEADS, HEAD_DIM)
    assert torch.allclose(attention(0.0).attend(q, keys, None), torch.full_like(q, 0.5))


def test_a_huge_sink_gives_zeros_not_nan() -> None:
    """den = inf for a huge sink correctly gives o = 0."""
    output = attention(1e9).attend(queries(), torch.ones(1, 4, HEAD_DIM), None)
    assert torch.equal(output, torch.zeros_like(output))


def test_padding_of_one_block_never_touches_another() -> None:
    q = queries(2)
    keys = torch.randn(2, 6, HEAD_DIM, generator=torch.Generator().manual_seed(2))
    hidden = torch.zeros(2, 1, 6, dtype=torch.bool)
    hidden[1, 0, 2:] = True
    both = attention(0.3).attend(q, keys, hidden)
    assert torch.allclose(both[:1], attention(0.3).attend(q[:1], keys[:1], None), atol=1e-6)
    assert torch.allclose(both[1:], attention(0.3).attend(q[1:], keys[1:, :2], None), atol=1e-6)


def test_scores_of_any_height_stay_finite() -> None:
    """The maximum is subtracted before the exponential."""
    output = attention(0.0).attend(1e6 * queries(), 1e6 * torch.ones(1, 4, HEAD_DIM), None)
    assert output.isfinite().all()
