"""Products with packed weights: padding, slices, groups, pieces, the cache (EXL3 spec §1, §7)."""

import pytest
import torch
from torch import Tensor

from dspark_worker.model.exl3 import linear as linear_module
from dspark_worker.model.exl3.cache import DecodedCache
from dspark_worker.model.exl3.linear import Exl3Grouped, Exl3Linear, Exl3Sliced
from tests.unit.dspark_worker.model.exl3.layers import CPU, packed

PLENTY = 1 << 30


def cache(n_bytes: int = PLENTY, dtype: torch.dtype = torch.float32) -> DecodedCache:
    return DecodedCache(n_bytes, dtype, CPU)


def rows(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def close(y: Tensor, expected: Tensor, tolerance: float = 2e-6) -> bool:
    return bool((y - expected).abs().max() <= tolerance * expected.abs().max())


@pytest.mark.parametrize("bits", [1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8])
def test_the_product_is_that_of_the_dense_weight(bits: float) -> None:
    layer = packed(256, 384, bits)
    x = rows(5, 256)
    linear = Exl3Linear(layer, 256, 384, cache(), is_expert=False)
    linear.pin()
    y = linear(x)
    assert close(y, (x.double() @ layer.dense().double()).float())


def test_a_narrower_model_is_padded_and_what_is_padding_is_dropped() -> None:
    """§1: the caller extends x with zeros and drops the last outputs."""
    layer = packed(256, 256)
    x = rows(2, 3, 200)
    y = Exl3Linear(layer, 200, 130, cache(), is_expert=False)(x)
    assert y.shape == (2, 3, 130)
    assert close(y, x @ layer.dense()[:200, :130])


def test_a_bias_comes_last() -> None:
    bias = rows(128)
    layer = packed()
    x = rows(2, 128)
    plain = Exl3Linear(layer, 128, 100, cache(), is_expert=False)(x)
    biased = Exl3Linear(layer._replace(bias=bias), 128, 100, cache(), is_expert=False)(x)
    assert torch.equal(biased, plain + bias[:100])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_result_has_the_inputs_dtype_and_is_rounded_once(dtype: torch.dtype) -> None:
    """Pitfall of §12: no product in bf16, where D is not exact."""
    layer = packed()
    x = rows(4, 128).to(dtype)
    linear = Exl3Linear(layer, 128, 128, cache(), is_expert=False)
    assert linear(x).dtype == dtype
    assert torch.equal(linear(x), linear(x.float()).to(dtype))


def test_as_on_cuda_d_is_fp16_and_the_product_near() -> None:
    """§7: an fp16 input path differs by some 4e-4 relative L2."""
    layer = packed(256, 256)
    x = rows(6, 256)
    exact = Exl3Linear(layer, 256, 256, cache(), is_expert=False)(x)
    half = Exl3Linear(layer, 256, 256, cache(dtype=torch.float16), is_expert=False)(x)
    assert 0 < float((half - exact).norm() / exact.norm()) < 1e-3


@pytest.mark.parametrize("is_expert", [False, True])
def test_kept_or_not_the_product_is_the_same_to_the_last_bit(is_expert: bool) -> None:
    layer = packed(128, 256)
    x = rows(3, 128)
    kept = Exl3Linear(layer, 128, 256, cache(), is_expert=is_expert)
    kept.pin()
    never = Exl3Linear(layer, 128, 256, cache(0), is_expert=is_expert)
    assert torch.equal(kept(x), never(x))
    assert torch.equal(kept(x), never(x))


def test_a_matrix_that_is_not_kept_is_decoded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_module, "PIECE_WEIGHTS", 128 * 256)
    layer = packed(128, 640)
    space = cache(0)
    linear = Exl3Linear(layer, 128, 640, space, is_expert=False)
    linear.pin()  # in vain
    assert close(linear(rows(3, 128)), rows(3, 128) @ layer.dense())
    assert space.shared(1).untyped_storage().nbytes() == 4 * 128 * 256


def test_experts_come_and_go_within_the_budget_and_dense_layers_stay() -> None:
    n_bytes = 4 * 128 * 128
    space = cache(3 * n_bytes)
    dense = Exl3Linear(packed(seed=9), 128, 128, space, is_expert=False)
    dense.pin()
    experts = [Exl3Linear(packed(seed=seed), 128, 128, space, is_expert=True) for seed in range(4)]
    assert space.facts()[1:3] == (n_bytes, 0)
    x = rows(2, 128)
    first = [expert(x) for expert in experts]
    assert space.facts()[1:] == (n_bytes, 2 * n_bytes, 0, 4)
    assert torch.equal(experts[3](x), first[3])
    assert space.facts().hits == 1
    again = [expert(x) for expert in experts]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    dense(x)
    assert space.facts().pinned_bytes == n_bytes


def test_slices_are_joined_along_the_outputs() -> None:
    parts = [packed(128, 128, seed=seed) for seed in (1, 2)]
    x = rows(3, 128)
    space = cache()
    sliced = Exl3Sliced(tuple(Exl3Linear(p, 128, 96, space, is_expert=False) for p in parts))
    expected = torch.cat([x @ p.dense()[:, :96] for p in parts], -1)
    assert sliced(x).shape == (3, 192)
    assert close(sliced(x), expected)


def test_each_group_of_inputs_meets_its_own_layer() -> None:
    layer = packed(128, 384)
    x = rows(4, 3, 128)
    space = cache()
    groups = [
        Exl3Linear(layer.columns(n, n + 128), 128, 128, space, is_expert=False)
        for n in (0, 128, 256)
    ]
    w = layer.dense().view(128, 3, 128)
    expected = torch.einsum("tgi,igo->tgo", x, w)
    assert close(Exl3Grouped(tuple(groups))(x), expected)
