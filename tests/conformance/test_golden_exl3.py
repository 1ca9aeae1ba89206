"""The EXL3 golden vectors: decoded bits and products as exllamav3's own kernels give them (§11)."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from dspark_worker.model.exl3.cache import DecodedCache
from dspark_worker.model.exl3.codebook import values
from dspark_worker.model.exl3.export import dequantized
from dspark_worker.model.exl3.linear import Exl3Linear
from dspark_worker.model.exl3.packed import Packed
from dspark_worker.model.exl3.reading import read_packed
from dspark_worker.model.exl3.tiles import SIDE, state_ends
from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.checkpoint.exl3 import Codebook, examine
from dsparkctl.checkpoint.header import read_header

GOLDEN = Path(__file__).parents[1] / "golden" / "exl3"
INDEX: dict[str, Any] = json.loads((GOLDEN / "index.json").read_text())
CPU = torch.device("cpu")
CLOSE = 2e-6
"""Of max|y|, for a path in fp32."""


class Case(NamedTuple):
    file: str
    prefix: str
    expect: str
    """What its expected tensors' names begin with."""
    inner_sha256: str
    bits: float
    codebook: str


def cases() -> Iterator[Case]:
    for case in INDEX["cases"]:
        if not case.get("moe"):
            yield Case(
                case["file"], "layer", "expect.", case["w_inner_sha256"], case["K"], case["cb"]
            )
            continue
        for prefix, sha256 in case["w_inner_sha256"].items():
            bits = case["K"][prefix]
            yield Case(case["file"], prefix, f"expect.{prefix}.", sha256, bits, case["cb"])


CASES = [pytest.param(case, id=f"{case.file[:-12]}-{case.prefix}") for case in cases()]


def tensors(case: Case) -> dict[str, Tensor]:
    return load_file(GOLDEN / case.file)


def packed(case: Case) -> Packed:
    start = len(case.prefix) + 1
    header = read_header(GOLDEN / case.file)
    stored = {n[start:]: info for n, info in header.items() if n.startswith(f"{case.prefix}.")}
    layer, faults = examine(case.prefix, stored)
    assert layer is not None, faults
    assert (layer.bits, layer.codebook.value) == (case.bits, case.codebook)
    take = tensors(case).__getitem__
    return read_packed(layer, take, lambda name, what: CheckpointError(f"{name}: {what}"), CPU)


def sha256(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def furthest(y: Tensor, expected: Tensor) -> float:
    """The largest difference, in max|y|."""
    return float((y - expected).abs().max() / expected.abs().max())


def test_there_are_thirty_matrices_of_all_kinds() -> None:
    found = list(cases())
    assert len(found) == 30
    assert {case.codebook for case in found} == {"3inst", "mcg", "mul1"}
    assert {case.bits for case in found} == {2, 2.5, 3, 4, 5, 6, 8}


@pytest.mark.parametrize("codebook", Codebook)
def test_every_state_of_a_codebook_is_the_kernels_number_bit_for_bit(codebook: Codebook) -> None:
    """§4: the table's hash over all 65,536 states."""
    stated = INDEX["codebooks"][codebook.value]["sha256_le_u16"]
    assert sha256(values(codebook)) == stated


@pytest.mark.parametrize("case", CASES)
def test_the_decoded_matrix_is_bit_equal(case: Case) -> None:
    inner = packed(case).inner()
    assert inner.dtype == torch.float16
    assert sha256(inner) == case.inner_sha256
    stored = tensors(case).get(f"{case.expect}w_inner_f16")
    assert stored is None or torch.equal(inner.view(torch.int16), stored.view(torch.int16))
    # Every value is an fp16 number: fp32 holds the same.
    assert torch.equal(packed(case).inner(torch.float32), inner.float())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("budget_bytes", [0, 1 << 30])
@pytest.mark.parametrize("is_expert", [False, True])
def test_products_are_as_exact_as_fp32_is(case: Case, budget_bytes: int, is_expert: bool) -> None:
    """§7: 2e-6 of max|y|, whether D was kept or is decoded at every use."""
    layer, known = packed(case), tensors(case)
    cache = DecodedCache(budget_bytes, torch.float32, CPU)
    linear = Exl3Linear(layer, layer.n_in, layer.n_out, cache, is_expert=is_expert)
    linear.pin()
    first = linear(known[f"{case.expect}x_f32"])
    assert furthest(first, known[f"{case.expect}y_exact_f32"]) <= CLOSE
    assert torch.equal(linear(known[f"{case.expect}x_f32"]), first)


@pytest.mark.parametrize("case", CASES)
def test_the_dense_weight_is_the_same_layer(case: Case) -> None:
    """§5: x · W + b."""
    known = tensors(case)
    found = dequantized(GOLDEN / case.file, case.prefix, inner=False)
    bias = found.get("bias", torch.zeros(1))
    y = known[f"{case.expect}x_f32"] @ found["weight"] + bias
    assert furthest(y, known[f"{case.expect}y_exact_f32"]) <= CLOSE
    reference = known.get(f"{case.expect}w_f16")
    assert reference is None or furthest(found["weight"], reference.float()) <= 2e-3


def test_what_was_quantised_from_a_real_matrix_is_near_it() -> None:
    name = "realquant_mul1_k5_128x128.safetensors"
    weight = dequantized(GOLDEN / name, "layer", inner=False)["weight"]
    source = load_file(GOLDEN / name)["expect.w_source_f32"]
    nmse = float((weight - source).square().mean() / source.square().mean())
    assert nmse == pytest.approx(1.26e-3, rel=0.02)


WITH_STATES: list[str] = [case["file"] for case in INDEX["cases"] if case.get("states")]


@pytest.mark.parametrize("name", WITH_STATES)
def test_states_end_where_the_stream_says(name: str) -> None:
    """§2: the windows of 16 bits, read bit by bit from the definition."""
    known = load_file(GOLDEN / name)
    trellis, states = known["layer.trellis"], known["expect.states_i16"]
    halves = trellis.view(*trellis.shape[:2], -1, 2).flip(-1).flatten(2).to(torch.int32) & 0xFFFF
    bits = (halves.unsqueeze(-1) >> torch.arange(SIDE - 1, -1, -1)).flatten(2) & 1
    for i, end in enumerate(state_ends(trellis.shape[-1])):
        window = bits[..., [(end - 16 + n) % bits.shape[-1] for n in range(16)]]
        value = (window << torch.arange(15, -1, -1)).sum(-1)
        assert torch.equal(value, states[..., i].to(torch.int64) & 0xFFFF)
