"""Rotation by position (spec §5.2)."""

import pytest
import torch

from dspark_worker.model.rope import make_rope, rotate_

CPU = torch.device("cpu")


def test_only_the_last_r_components_turn_and_adjacent_ones_are_a_pair() -> None:
    rope = make_rope(4, 10000.0, CPU)
    x = torch.tensor([[5.0, 6.0, 1.0, 0.0, 1.0, 0.0]])
    turned = rotate_(x, rope.at(torch.tensor([1])))[0]
    angles = torch.tensor([1.0, 0.01])
    assert turned[:2].tolist() == [5.0, 6.0]
    assert torch.allclose(turned[2::2], angles.cos())
    assert torch.allclose(turned[3::2], angles.sin())


@pytest.mark.parametrize("position", [0, 1, 164, 327_679])
def test_turning_back_gives_what_was_turned(position: int) -> None:
    rope = make_rope(16, 10000.0, CPU)
    x = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    turns = rope.at(torch.tensor([position] * 3))
    assert torch.allclose(rotate_(rotate_(x.clone(), turns), turns.conj()), x, atol=1e-6)


def test_angles_are_fp32_products_even_far_out() -> None:
    """A float64 table differs by 0.01 near position 327,679, and that is not what is stored."""
    rope = make_rope(64, 10000.0, CPU)
    position = torch.tensor([327_679])
    exponent = torch.arange(0, 64, 2, dtype=torch.float32) / 64
    angles = position.float() * (1.0 / (10000.0**exponent))
    mine = rope.at(position)[0]
    assert torch.allclose(mine.real.double(), angles.double().cos(), atol=1e-6)
    exact = 327_679 * 10000.0 ** -(torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    assert (mine.real.double() - exact.cos()).abs().max() > 1e-3


def test_the_result_has_the_inputs_dtype() -> None:
    rope = make_rope(4, 10000.0, CPU)
    x = torch.ones(1, 8, dtype=torch.bfloat16)
    assert rotate_(x, rope.at(torch.tensor([3]))).dtype == torch.bfloat16
