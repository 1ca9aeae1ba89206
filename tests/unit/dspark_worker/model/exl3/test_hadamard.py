"""The Hadamard transform in blocks of 128 (EXL3 spec §5)."""

import torch

from dspark_worker.model.exl3.hadamard import matrix, transformed
from tests.unit.dspark_worker.model.exl3.layers import CPU


def test_entries_are_signs_by_common_bits_times_a_constant() -> None:
    found = matrix(torch.float32, CPU)
    for row, column in ((0, 0), (1, 1), (3, 2), (127, 127), (85, 42), (64, 96)):
        sign = (-1) ** (row & column).bit_count()
        assert found[row, column] == sign * torch.tensor(0.088388347648)


def test_it_is_its_own_inverse_and_keeps_blocks_apart() -> None:
    x = torch.randn(3, 384, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(transformed(transformed(x)), x, atol=1e-9)
    changed = x.clone()
    changed[:, 128:256] = 0
    same = transformed(changed) == transformed(x)
    assert same[:, :128].all()
    assert same[:, 256:].all()
    assert not same[:, 128:256].any()
