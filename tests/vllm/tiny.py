"""The rig's model: a random Qwen3 target of 4 layers, and a DSpark drafter of one layer.

Decides weights and configuration. Tokens are nearly a fixed walk through the vocabulary (the head
is the embedding, permuted), bent by the last layer's attention, so that a wrong KV cache shows. The
first three layers add little to the residual stream: a tap row then still tells which token stood
at its position, and the answering worker reads the window from it (`answering_worker`).
"""

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

N: Final = 5
WINDOW: Final = 32
HIDDEN: Final = 64
VOCAB: Final = 512
NOISE: Final = VOCAB - 1
MAX_LEN: Final = 512
SLOTS: Final = 4
LAYERS: Final = 4
TAPS: Final = (1, 2, 3)
"""Decoder layers whose input is tapped. DSpark configurations but V4.1's name the layer before."""

_HEADS, _KV_HEADS, _HEAD_DIM, _MLP, _MARKOV_RANK = 4, 2, 32, 128, 16
_QUIET, _LOUD = 0.2, 1.2
"""What a layer adds to the residual stream, as a share of an embedding."""


class Folders(NamedTuple):
    """Checkpoints as vLLM reads them."""

    target: Path
    draft: Path
    bare: Path
    """The drafter's configuration without its weights: all that the capacity policy needs."""


def write(folder: Path) -> Folders:
    """All three, made below `folder`; the same bytes every time."""
    found = Folders(folder / "target", folder / "draft", folder / "bare")
    _save(found.target, _target_config(), _target_weights())
    _save(found.draft, _draft_config(), _draft_weights())
    _save(found.bare, _draft_config(), {})
    return found


def _target_config() -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
        "num_hidden_layers": LAYERS,
        "intermediate_size": _MLP,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HEAD_DIM,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }


def _draft_config() -> dict[str, Any]:
    return {
        **_target_config(),
        "architectures": ["Qwen3DSparkModel"],
        "num_hidden_layers": 1,
        "num_target_layers": LAYERS,
        "target_layer_ids": [layer - 1 for layer in TAPS],
        "block_size": N,
        "dspark_block_size": N,
        "dspark_noise_token_id": NOISE,
        "mask_token_id": NOISE,
        "markov_rank": _MARKOV_RANK,
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "max_window_layers": 0,
        "layer_types": ["sliding_attention"],
    }


def _target_weights() -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(7)
    embedding = _random(draw, VOCAB, HIDDEN, scale=1.0)
    successor = torch.randperm(VOCAB, generator=draw)
    found = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": _ones(HIDDEN),
        "lm_head.weight": embedding[successor].clone(),
    }
    for layer in range(LAYERS):
        scale = _LOUD if layer == LAYERS - 1 else _QUIET
        found |= _layer(draw, f"model.layers.{layer}.", scale)
    return found


def _draft_weights() -> dict[str, Tensor]:
    """Embedding and head are the target's, as vLLM shares them where a checkpoint has none."""
    draw = torch.Generator().manual_seed(9)
    return {
        "fc.weight": _random(draw, HIDDEN, len(TAPS) * HIDDEN),
        "hidden_norm.weight": _ones(HIDDEN),
        "norm.weight": _ones(HIDDEN),
        "markov_head.markov_w1.weight": _random(draw, VOCAB, _MARKOV_RANK),
        "markov_head.markov_w2.weight": _random(draw, VOCAB, _MARKOV_RANK),
        "confidence_head.proj.weight": _random(draw, 1, HIDDEN + _MARKOV_RANK),
        "confidence_head.proj.bias": torch.zeros(1, dtype=torch.bfloat16),
        **_layer(draw, "layers.0.", 1.0),
    }


def _layer(draw: torch.Generator, prefix: str, scale: float) -> dict[str, Tensor]:
    q, kv = _HEADS * _HEAD_DIM, _KV_HEADS * _HEAD_DIM
    return {
        f"{prefix}self_attn.q_proj.weight": _random(draw, q, HIDDEN),
        f"{prefix}self_attn.k_proj.weight": _random(draw, kv, HIDDEN),
        f"{prefix}self_attn.v_proj.weight": _random(draw, kv, HIDDEN),
        f"{prefix}self_attn.o_proj.weight": _random(draw, HIDDEN, q, scale=scale * q**-0.5),
        f"{prefix}self_attn.q_norm.weight": 2 * _ones(_HEAD_DIM),
        f"{prefix}self_attn.k_norm.weight": 2 * _ones(_HEAD_DIM),
        f"{prefix}mlp.gate_proj.weight": _random(draw, _MLP, HIDDEN),
        f"{prefix}mlp.up_proj.weight": _random(draw, _MLP, HIDDEN),
        f"{prefix}mlp.down_proj.weight": _random(draw, HIDDEN, _MLP, scale=scale * _MLP**-0.5),
        f"{prefix}input_layernorm.weight": _ones(HIDDEN),
        f"{prefix}post_attention_layernorm.weight": _ones(HIDDEN),
    }


def _random(draw: torch.Generator, *shape: int, scale: float | None = None) -> Tensor:
    scale = shape[-1] ** -0.5 if scale is None else scale
    return (torch.randn(*shape, generator=draw) * scale).to(torch.bfloat16)


def _ones(n: int) -> Tensor:
    return torch.ones(n, dtype=torch.bfloat16)


def _save(folder: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if weights:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
