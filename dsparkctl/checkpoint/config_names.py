"""The names under which a config states each value: Hugging Face's and the reference's (§1).

Only the table and the search through a file; what a value may be is `model_config`'s business.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dsparkctl.checkpoint.errors import wrong

NAMES: Mapping[str, tuple[str, ...]] = {
    "vocab_size": ("vocab_size",),
    "hidden": ("hidden_size", "dim"),
    "n_heads": ("num_attention_heads", "n_heads"),
    "n_kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "rope_dim": ("qk_rope_head_dim", "rope_head_dim"),
    "q_rank": ("q_lora_rank",),
    "o_groups": ("o_groups",),
    "o_rank": ("o_lora_rank",),
    "expert_hidden": ("moe_intermediate_size", "moe_inter_dim"),
    "n_backbone_layers": ("num_hidden_layers", "n_layers"),
    "n_layers": ("num_nextn_predict_layers", "n_mtp_layers"),
    "draft_n_experts": ("dspark_n_routed_experts",),
    "draft_n_active_experts": ("dspark_num_experts_per_tok", "dspark_n_activated_experts"),
    "backbone_n_experts": ("n_routed_experts",),
    "backbone_n_active_experts": ("num_experts_per_tok", "n_activated_experts"),
    "n_shared_experts": ("n_shared_experts",),
    "scoring": ("scoring_func", "score_func"),
    "normalised_routing": ("norm_topk_prob",),
    "topk_method": ("topk_method",),
    "route_scale": ("routed_scaling_factor", "route_scale"),
    "gate_temp": ("gate_temp",),
    "swiglu_limit": ("swiglu_limit",),
    "norm_eps": ("rms_norm_eps", "norm_eps"),
    "n_streams": ("hc_mult",),
    "sinkhorn_iters": ("hc_sinkhorn_iters",),
    "hc_eps": ("hc_eps",),
    "window": ("sliding_window", "window_size"),
    "rope_theta": ("rope_theta",),
    "compress_ratios": ("compress_ratios",),
    "num_spec": ("dspark_block_size",),
    "noise_token_id": ("dspark_noise_token_id",),
    "tap_layer_ids": ("dspark_target_layer_ids",),
    "markov_rank": ("dspark_markov_rank",),
}
"""meaning -> the keys that state it. A draft's expert count of 0 says "as the backbone" (§1)."""


class Stated(NamedTuple):
    """One value and where it stands."""

    value: Any
    file: Path
    key: str
    """With its nesting, e.g. `text_config.hidden_size`."""


def stated_values(path: Path, config: dict[str, Any]) -> dict[str, Stated]:
    """Everything one file states, by meaning; `CheckpointError` where it contradicts itself."""
    nested = config.get("text_config")
    if nested is not None and not isinstance(nested, dict):
        raise wrong(path, "must be an object", at="text_config")
    found: dict[str, Stated] = {}
    for meaning in NAMES:
        for stated in _everywhere(path, config, nested or {}, meaning):
            if meaning.startswith("draft_") and stated.value == 0:
                continue
            first = found.setdefault(meaning, stated)
            if first is not stated and first.value != stated.value:
                raise wrong(path, f"does not agree with {first.key}", at=stated.key)
    return found


def _everywhere(
    path: Path, config: dict[str, Any], nested: dict[str, Any], meaning: str
) -> Iterator[Stated]:
    for prefix, place in (("text_config.", nested), ("", config)):
        for name in NAMES[meaning]:
            if place.get(name) is not None:
                yield Stated(place[name], path, prefix + name)
