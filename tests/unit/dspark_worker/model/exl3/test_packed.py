"""One layer in memory: D, W, slices of it, packed signs (EXL3 spec §5, §6, §9)."""

import pytest
import torch

from dspark_worker.model.exl3.hadamard import matrix
from dspark_worker.model.exl3.packed import signs
from tests.unit.dspark_worker.model.exl3.layers import CPU, packed


@pytest.mark.parametrize(("n_in", "n_out"), [(128, 128), (256, 1280), (384, 256)])
def test_the_dense_weight_is_the_formula(n_in: int, n_out: int) -> None:
    """W = diag(suh) · H · D · H · diag(svh), also where it is made in more than one piece."""
    layer = packed(n_in, n_out)
    h = matrix(torch.float64, CPU)
    turn_in, turn_out = (torch.kron(torch.eye(n // 128), h).double() for n in (n_in, n_out))
    inner = layer.inner().double()
    expected = layer.suh.double().diag() @ turn_in @ inner @ turn_out @ layer.svh.double().diag()
    assert torch.allclose(layer.dense().double(), expected, rtol=1e-6, atol=1e-8)


def test_a_slice_along_the_outputs_is_a_layer() -> None:
    layer = packed(256, 512)._replace(bias=torch.arange(512.0))
    part = layer.columns(128, 384)
    assert (part.n_in, part.n_out, part.n_weights) == (256, 256, 256 * 256)
    assert torch.equal(part.inner(), layer.inner()[:, 128:384])
    assert torch.equal(part.dense(), layer.dense()[:, 128:384])
    assert part.bias is not None
    assert part.bias.tolist() == list(range(128, 384))


def test_the_lowest_bit_is_the_first_sign_and_one_means_minus() -> None:
    """§6: sixteen signs a word, the top bit included."""
    words = torch.tensor([0b0101, -32768], dtype=torch.int16)
    assert signs(words).tolist() == [-1, 1, -1, *[1] * 13, *[1] * 15, -1]
