"""The stream mixing at its edges (spec §5.1); its values are held by the golden units."""

import pytest
import torch

from dspark_worker.model.streams import Mixer, Mixing, collapse, sinkhorn, spread


def mixer(iters: int = 20) -> Mixer:
    return Mixer(torch.empty(0), torch.zeros(24), torch.ones(3), 4, iters, 1e-20, 1e-6)


@pytest.mark.parametrize("height", [60.0, -60.0, 1000.0, -1000.0])
def test_extreme_mixes_stay_finite(height: float) -> None:
    """Pitfall 13: a sigmoid by way of tanh or exp overflows here."""
    u = height * torch.randn(9, 24, generator=torch.Generator().manual_seed(0)).sign()
    mixing = mixer().coefficients(u)
    assert all(part.isfinite().all() for part in mixing)
    assert (mixing.pre >= 1e-6).all()
    assert (mixing.post <= 2).all()


def test_sinkhorn_ends_on_columns() -> None:
    logits = torch.randn(5, 4, 4, generator=torch.Generator().manual_seed(0)) * 3
    mixed = sinkhorn(logits, 1, 1e-6)
    assert torch.allclose(mixed.sum(-2), torch.ones(5, 4), atol=1e-3)
    assert not torch.allclose(mixed.sum(-1), torch.ones(5, 4), atol=1e-2)


def test_more_iterations_come_nearer_to_doubly_stochastic() -> None:
    logits = torch.randn(5, 4, 4, generator=torch.Generator().manual_seed(0)) * 3
    errors = [(sinkhorn(logits, n, 1e-6).sum(-1) - 1).abs().max() for n in (1, 7, 20)]
    assert errors[0] > errors[1] > errors[2]


def test_spread_sums_over_the_first_index() -> None:
    """M transposed times X: stream a goes where row a says."""
    comb = torch.zeros(1, 4, 4)
    comb[0, 1, 3] = 1.0
    streams = torch.arange(4.0).view(1, 4, 1).expand(1, 4, 2) + 1
    out = spread(torch.zeros(1, 2), streams, Mixing(torch.zeros(1, 4), torch.zeros(1, 4), comb))
    assert out[0, :, 0].tolist() == [0, 0, 0, 2]


def test_collapse_rounds_once_to_the_streams_dtype() -> None:
    """§3: Σ pre·X is rounded to bf16 before its RMS."""
    streams = torch.full((1, 4, 2), 1.0, dtype=torch.bfloat16)
    out = collapse(streams, torch.tensor([[0.25, 0.25, 0.25, 0.2501]]))
    assert out.dtype == torch.bfloat16
    assert out.tolist() == [[1.0, 1.0]]
