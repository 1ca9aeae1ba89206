"""The fixtures' encoder: legal rings, near the weight, in the decoder's own terms."""

from collections.abc import Iterator

import pytest
import torch

from dspark_worker.model.exl3.codebook import values
from dspark_worker.model.exl3.packed import Packed
from dspark_worker.model.exl3.reading import read_packed
from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.checkpoint.exl3 import Codebook, examine
from dsparkctl.checkpoint.header import TensorInfo
from examples.exl3_encoder import Encoded, encode, search_ring

WORDS = {torch.int16: "I16", torch.float16: "F16", torch.int32: "I32"}
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Many small steps: on a busy machine two threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("k", [2, 4, 7])
@pytest.mark.parametrize("codebook", Codebook)
def test_a_tile_is_a_ring_and_nearly_as_near_as_its_bits_allow(k: int, codebook: Codebook) -> None:
    """§2: each state is the one before, shifted by K fresh bits, and the last leads to the first.
    No code is nearer than 4^-K, the rate-distortion bound; this one comes within some 20 %."""
    table = values(codebook).float()
    aims = torch.randn(256, generator=torch.Generator().manual_seed(k)) * table.std()
    states = search_ring(table, k, aims)
    before = states.roll(1)
    assert torch.equal(states >> k, before & (0xFFFF >> k))
    nmse = float((table[states] - aims).square().mean() / aims.square().mean())
    assert nmse < 1.6 * 4.0**-k


def decoded(found: Encoded) -> Packed:
    """Through the loader's own checks."""
    stored = {
        suffix: TensorInfo(WORDS[tensor.dtype], tuple(tensor.shape), 0, tensor.nbytes)
        for suffix, tensor in found.tensors.items()
    }
    layer, faults = examine("P", stored)
    assert layer is not None, faults
    tensors = {f"P.{suffix}": tensor for suffix, tensor in found.tensors.items()}
    return read_packed(layer, tensors.__getitem__, lambda n, w: CheckpointError(n + w), CPU)


def test_what_was_encoded_decodes_to_something_near() -> None:
    """A narrow weight is padded; so much padding costs some accuracy."""
    weight = torch.randn(30, 20, generator=torch.Generator().manual_seed(1)) * 0.05
    found = encode(weight, 4, Codebook.MUL1, seed=1)
    layer = decoded(found)
    assert (layer.codebook, layer.trellis.shape) == (Codebook.MUL1, (8, 8, 64))
    dense = layer.dense()[:20, :30].T
    error = float((dense - weight).square().mean() / weight.square().mean())
    assert 4.0**-4 < found.nmse < 0.012
    assert error < 0.012
