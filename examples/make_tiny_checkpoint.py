"""Write a tiny random drafter checkpoint of the real layout: names, both configs, one shard.

    python examples/make_tiny_checkpoint.py --out /tmp/tiny --format release --seed 7

`bf16` stores plain weights; `release` stores them as DeepSeek does: fp8 with a scale for each 32×32
tile, routed experts as packed fp4. The same arguments give the same bytes. What such a drafter says
is noise, but it says it through every part of the real model.
"""

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from dsparkctl.checkpoint.files import CheckpointFiles
from dsparkctl.checkpoint.model_config import read_model_config
from dsparkctl.checkpoint.tensors import TILE, Expected, Kind, expected_tensors

N_BACKBONE_LAYERS = 40
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


class Shape(NamedTuple):
    """What may be chosen; the rest of the config is the live model's."""

    vocab: int = 256
    hidden: int = 64
    heads: int = 2
    head_dim: int = 80
    rope_dim: int = 16
    q_rank: int = 32
    o_groups: int = 2
    o_rank: int = 32
    expert_hidden: int = 32
    layers: int = 3
    experts: int = 8
    active: int = 3
    window: int = 16
    block: int = 5
    taps: int = 3
    markov_rank: int = 8
    noise_id: int = 255
    sinkhorn_iters: int = 20
    norm_eps: float = 1e-20


def configs(shape: Shape) -> tuple[dict[str, Any], dict[str, Any]]:
    """`config.json` in Hugging Face's spelling and `inference_config.json` in the reference's."""
    s = shape
    taps = list(range(N_BACKBONE_LAYERS - s.taps, N_BACKBONE_LAYERS))
    both = {
        "vocab_size": s.vocab,
        "head_dim": s.head_dim,
        "q_lora_rank": s.q_rank,
        "o_groups": s.o_groups,
        "o_lora_rank": s.o_rank,
        "rope_theta": 10000.0,
        "swiglu_limit": 10.0,
        "hc_mult": 4,
        "hc_sinkhorn_iters": s.sinkhorn_iters,
        "hc_eps": 1e-6,
        "dspark_block_size": s.block,
        "dspark_noise_token_id": s.noise_id,
        "dspark_target_layer_ids": taps,
        "dspark_markov_rank": s.markov_rank,
        "dspark_n_routed_experts": s.experts,
    }
    hugging_face = {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "text_config": {
            "model_type": "deepseek_v41_text",
            **both,
            "hidden_size": s.hidden,
            "num_hidden_layers": N_BACKBONE_LAYERS,
            "num_nextn_predict_layers": s.layers,
            "num_attention_heads": s.heads,
            "num_key_value_heads": 1,
            "qk_rope_head_dim": s.rope_dim,
            "moe_intermediate_size": s.expert_hidden,
            "dspark_num_experts_per_tok": s.active,
            "n_shared_experts": 1,
            "scoring_func": "sqrtsoftplus",
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.5,
            "rms_norm_eps": s.norm_eps,
            "sliding_window": s.window,
            "compress_ratios": [0, 0, *[1] * (N_BACKBONE_LAYERS - 2), *[0] * s.layers],
            "tie_word_embeddings": False,
        },
    }
    reference = {
        **both,
        "dim": s.hidden,
        "n_mtp_layers": s.layers,
        "n_heads": s.heads,
        "rope_head_dim": s.rope_dim,
        "moe_inter_dim": s.expert_hidden,
        "dspark_n_activated_experts": s.active,
        "score_func": "sqrtsoftplus",
        "route_scale": 1.5,
        "norm_eps": s.norm_eps,
        "window_size": s.window,
    }
    return hugging_face, reference


def random_weight(expected: Expected, generator: torch.Generator) -> Tensor:
    """fp32 of the logical shape, in a range where every part of the model has its say."""

    def noise(scale: float) -> Tensor:
        return torch.randn(expected.shape, generator=generator) * scale

    name = expected.name
    if name.endswith("norm.weight"):
        return 1 + noise(0.2)
    if name.endswith("_scale"):  # of the stream mixing, a parameter
        return 0.5 + noise(0.1)
    if name.endswith(("_base", "bias", "bias_vl", "attn_sink")):
        return noise(0.3)
    if name == "embed.weight" or name.endswith("markov_head.embed.weight"):
        return noise(1.0)
    width = expected.shape[-1] ** -0.5
    if name == "head.weight" or name.endswith("markov_head.head.weight"):
        return noise(2 * width)  # context and chain weigh alike: drafts vary
    if name.endswith("confidence_head.proj.weight"):
        return noise(0.3 * width)  # neither 0 nor 1
    return noise(width)


def as_fp8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[out, in] -> e4m3 codes and an e8m0 scale for each 32×32 tile."""
    n_out, n_in = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -n_in % TILE, 0, -n_out % TILE))
    tiles = padded.unfold(0, TILE, TILE).unfold(1, TILE, TILE)
    scale = _power_of_two(tiles.abs().amax((2, 3)) / 448)
    spread = scale.repeat_interleave(TILE, 0).repeat_interleave(TILE, 1)[:n_out, :n_in]
    return (weight / spread).to(torch.float8_e4m3fn), scale.to(torch.float8_e8m0fnu)


def as_fp4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[out, in] -> two e2m1 codes per byte, the even input low, and a scale for each 32 inputs."""
    n_out, n_in = weight.shape
    groups = weight.view(n_out, n_in // TILE, TILE)
    scale = _power_of_two(groups.abs().amax(-1) / 6)
    values = (groups / scale.unsqueeze(-1)).view(n_out, n_in)
    codes = (values.abs().unsqueeze(-1) - E2M1).abs().argmin(-1) + 8 * (values < 0)
    packed = codes[:, ::2] + 16 * codes[:, 1::2]
    return packed.to(torch.uint8).view(torch.int8), scale.to(torch.float8_e8m0fnu)


def _power_of_two(least: Tensor) -> Tensor:
    """The smallest power of two that is not below `least`."""
    mantissa, exponent = torch.frexp(least)
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)
    return torch.ldexp(torch.ones_like(least), exponent)


def write_checkpoint(
    directory: Path, shape: Shape, *, release: bool, seed: int
) -> dict[str, Tensor]:
    """Write configs and `model.safetensors` into a folder; returns the tensors that were stored."""
    directory.mkdir(parents=True, exist_ok=True)
    config, inference_config = (
        directory / name for name in ("config.json", "inference_config.json")
    )
    for path, values in zip((config, inference_config), configs(shape), strict=True):
        path.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    model = read_model_config(CheckpointFiles(directory, config, inference_config, None, ()))

    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for expected in expected_tensors(model):
        weight = random_weight(expected, generator)
        if release and expected.kind is not Kind.FLOAT:
            pack = as_fp8 if expected.kind is Kind.DENSE else as_fp4
            tensors[expected.name], tensors[expected.scale_name] = pack(weight)
        elif expected.name.endswith(".weight"):
            tensors[expected.name] = weight.to(torch.bfloat16)
        else:
            tensors[expected.name] = weight
    shard = directory / "model.safetensors"
    save_file(tensors, shard, metadata={"format": "pt"})
    shard.chmod(0o644)  # the library leaves it to its owner alone
    return tensors


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a tiny random drafter checkpoint.")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--format", choices=("bf16", "release"), default="bf16")
    parser.add_argument("--seed", type=int, default=0)
    for field, default in Shape._field_defaults.items():
        flag = f"--{field.replace('_', '-')}"
        parser.add_argument(flag, type=type(default), default=default, help=f"default {default}")
    given = parser.parse_args()
    shape = Shape(*(getattr(given, field) for field in Shape._fields))
    write_checkpoint(given.out, shape, release=given.format == "release", seed=given.seed)


if __name__ == "__main__":
    main()
