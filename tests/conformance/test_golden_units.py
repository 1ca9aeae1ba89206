"""The golden unit vectors: sampling ties, KV quantisation, Sinkhorn, dequantisation (spec §11)."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from dspark_worker.model.dequant import fp4_packed, fp8_tiles
from dspark_worker.model.heads import Heads
from dspark_worker.model.kv_quant import KvQuant, through_cache_
from dspark_worker.model.linear import PlainLinear
from dspark_worker.model.norms import RmsNorm
from dspark_worker.model.streams import Mixer

UNITS = Path(__file__).parents[1] / "golden" / "drafter" / "units"


def unit(name: str) -> dict[str, Tensor]:
    return load_file(UNITS / f"{name}.safetensors")


def test_ties_go_to_the_lowest_id_and_margins_are_exact() -> None:
    given = unit("sampling_ties")
    heads = Heads(
        norm=RmsNorm(torch.ones(16), 1e-20),
        head=PlainLinear(torch.empty(0)),
        markov_embed=given["markov_embed"],
        markov_head=given["markov_head"],
        confidence=given["confidence_proj"].flatten(),
    )
    sampled = heads.sample(
        given["base_logits"], given["head_hidden"], given["anchor"].long(), 5, want_margin=True
    )
    assert torch.equal(sampled.ids.int(), given["expected_ids"])
    assert torch.equal(sampled.margin, given["expected_margin"])
    assert (given["expected_margin"] == 0).any()
    confidence = torch.sigmoid(sampled.conf_logit)
    assert torch.allclose(confidence, given["expected_confidence"], rtol=0, atol=1e-6)


def test_both_cache_formats_are_bit_exact() -> None:
    given = unit("kv_quant_512")
    for kind, name in (
        (KvQuant.MXFP8_32, "official_mxfp8_32"),
        (KvQuant.V4_RECORD_64, "vllm_v4_record_64"),
    ):
        mine = through_cache_(given["kv"].clone(), kind, 64)
        assert torch.equal(mine.view(torch.int16), given[name].view(torch.int16))


def test_sinkhorn_and_its_gates_are_within_a_millionth() -> None:
    given = unit("sinkhorn")
    mixer = Mixer(torch.empty(0), given["base"], given["scale"], 4, 20, 1e-20, 1e-6)
    mixing = mixer.coefficients(given["mixes"])
    for mine, name in zip(mixing, ("pre", "post", "comb"), strict=True):
        assert torch.allclose(mine, given[name], rtol=0, atol=1e-6), name


def test_dequantisation_is_bit_exact() -> None:
    given = unit("dequant")
    assert torch.equal(fp8_tiles(given["fp8.weight"], given["fp8.scale"]), given["fp8.expected"])
    assert torch.equal(fp4_packed(given["fp4.weight"], given["fp4.scale"]), given["fp4.expected"])
