"""RMS norm and its rounding point (spec §3)."""

import torch

from dspark_worker.model.norms import RmsNorm


def test_the_gain_is_multiplied_in_fp32_before_the_one_rounding() -> None:
    """Rounding to bf16 before the gain would give another value at some of these."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 32, generator=generator).to(torch.bfloat16)
    weight = torch.randn(32, generator=generator)
    wide = x.double()
    exact = wide / (wide.square().mean(-1, keepdim=True) + 1e-20).sqrt() * weight.double()
    once = exact.to(torch.bfloat16)
    twice = (exact / weight).to(torch.bfloat16) * weight.to(torch.bfloat16)
    mine = RmsNorm(weight, 1e-20)(x)
    assert mine.dtype == torch.bfloat16
    assert (mine != once).float().mean() < 0.01
    assert (twice != once).float().mean() > 0.1


def test_a_zero_row_stays_zero_at_the_live_eps() -> None:
    """eps is 1e-20 in V4.1."""
    assert RmsNorm(torch.ones(8), 1e-20)(torch.zeros(2, 8)).tolist() == [[0.0] * 8] * 2


def test_eps_is_the_configs_own() -> None:
    x = torch.full((1, 4), 1e-3)
    assert torch.allclose(RmsNorm(torch.ones(4), 1e-6)(x), torch.full((1, 4), 2**-0.5))
