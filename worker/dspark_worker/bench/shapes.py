"""The models that `bench` can make up: the live shape, one for a desk's CPU, one for a test."""

from dataclasses import replace
from typing import Final

from dsparkctl.checkpoint.model_config import ModelConfig

REAL: Final = ModelConfig(
    vocab_size=129_280,
    hidden=5120,
    n_heads=64,
    head_dim=512,
    rope_dim=64,
    q_rank=1280,
    o_groups=8,
    o_rank=1024,
    expert_hidden=2304,
    n_layers=3,
    n_experts=128,
    n_active_experts=3,
    route_scale=1.5,
    swiglu_limit=10.0,
    norm_eps=1e-20,
    n_streams=4,
    sinkhorn_iters=20,
    hc_eps=1e-6,
    window=128,
    rope_theta=10_000.0,
    num_spec=5,
    noise_token_id=128_799,
    tap_layer_ids=(37, 38, 39),
    markov_rank=256,
)
"""DeepSeek-V4.1-Flash's drafter (model specification §1)."""

MID: Final = replace(
    REAL,
    vocab_size=32_768,
    hidden=1024,
    n_heads=16,
    head_dim=256,
    q_rank=256,
    o_groups=4,
    o_rank=256,
    expert_hidden=512,
    n_experts=32,
    noise_token_id=32_767,
)

TINY: Final = replace(
    REAL,
    vocab_size=256,
    hidden=64,
    n_heads=4,
    head_dim=32,
    rope_dim=8,
    q_rank=32,
    o_groups=2,
    o_rank=16,
    expert_hidden=32,
    n_experts=8,
    window=16,
    noise_token_id=255,
    markov_rank=16,
)

SHAPES: Final = {"real": REAL, "mid": MID, "tiny": TINY}

MAX_REQUESTS: Final = 4
"""Of a round; the live engine has no more (§6.2)."""
