"""The model's shape from either file, either spelling, either nesting (spec §1)."""

import json
from pathlib import Path
from typing import Any

import pytest

from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.checkpoint.files import CheckpointFiles
from dsparkctl.checkpoint.model_config import ModelConfig, read_model_config

HUGGING_FACE: dict[str, Any] = {
    "vocab_size": 129280,
    "hidden_size": 5120,
    "moe_intermediate_size": 2304,
    "num_hidden_layers": 40,
    "num_nextn_predict_layers": 3,
    "num_attention_heads": 64,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 1280,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "sliding_window": 128,
    "rms_norm_eps": 1e-20,
    "rope_theta": 10000,
    "scoring_func": "sqrtsoftplus",
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 10.0,
    "n_routed_experts": 384,
    "num_experts_per_tok": 6,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "dspark_block_size": 5,
    "dspark_noise_token_id": 128799,
    "dspark_target_layer_ids": [37, 38, 39],
    "dspark_markov_rank": 256,
    "dspark_n_routed_experts": 128,
    "dspark_num_experts_per_tok": 3,
    "rope_scaling": {"type": "yarn", "factor": 16},
    "compress_ratios": [0, 0, *[1] * 38, 0, 0, 0],
}
REFERENCE: dict[str, Any] = {
    "vocab_size": 129280,
    "dim": 5120,
    "moe_inter_dim": 2304,
    "n_mtp_layers": 3,
    "n_heads": 64,
    "head_dim": 512,
    "rope_head_dim": 64,
    "q_lora_rank": 1280,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "window_size": 128,
    "norm_eps": 1e-20,
    "rope_theta": 10000.0,
    "score_func": "sqrtsoftplus",
    "route_scale": 1.5,
    "swiglu_limit": 10.0,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "dspark_block_size": 5,
    "dspark_noise_token_id": 128799,
    "dspark_target_layer_ids": [37, 38, 39],
    "dspark_markov_rank": 256,
    "dspark_n_routed_experts": 128,
    "dspark_n_activated_experts": 3,
}
LIVE = ModelConfig(
    vocab_size=129280,
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
    rope_theta=10000.0,
    num_spec=5,
    noise_token_id=128799,
    tap_layer_ids=(37, 38, 39),
    markov_rank=256,
)


def read(directory: Path, config: object = None, inference_config: object = None) -> ModelConfig:
    paths = []
    for name, value in (("config.json", config), ("inference_config.json", inference_config)):
        path = directory / name
        if value is not None:
            path.write_text(json.dumps(value))
        paths.append(path if value is not None else None)
    return read_model_config(CheckpointFiles(directory, paths[0], paths[1], None, ()))


def refusal(directory: Path, config: object, inference_config: object = None) -> str:
    with pytest.raises(CheckpointError) as caught:
        read(directory, config, inference_config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def nested(**changes: Any) -> dict[str, Any]:
    text = {k: v for k, v in (HUGGING_FACE | changes).items() if v is not ...}
    return {"model_type": "deepseek_v41", "text_config": text}


@pytest.mark.parametrize(
    "files",
    [
        (nested(), None),
        (HUGGING_FACE, None),
        (None, REFERENCE),
        (REFERENCE, None),
        ({"text_config": REFERENCE}, None),
        (nested(), REFERENCE),
        (HUGGING_FACE | {"text_config": HUGGING_FACE}, REFERENCE),
    ],
    ids=["nested", "flat", "reference", "swapped", "nested reference", "both", "said twice"],
)
def test_both_spellings_and_both_nestings_give_the_live_shape(
    tmp_path: Path, files: tuple[object, object]
) -> None:
    assert read(tmp_path, *files) == LIVE


def test_hello_finds_what_it_needs() -> None:
    """§6.2 of the contract."""
    assert (LIVE.num_spec, LIVE.window, LIVE.hidden, LIVE.n_taps) == (5, 128, 5120, 3)
    assert LIVE.row_bytes == 30720
    assert LIVE.mix_width == 24


@pytest.mark.parametrize(
    "absent",
    ["num_key_value_heads", "topk_method", "quantization_config", "vision_config",
     "num_hidden_layers", "compress_ratios", "n_shared_experts", "n_routed_experts",
     "num_experts_per_tok", "scoring_func", "rope_scaling"],
)  # fmt: skip
def test_what_drafting_does_not_use_need_not_be_stated(tmp_path: Path, absent: str) -> None:
    assert read(tmp_path, nested(**{absent: ...})) == LIVE


@pytest.mark.parametrize("own", [0, None, ...])
def test_the_drafts_expert_counts_fall_back_to_the_backbones(tmp_path: Path, own: object) -> None:
    """§1: 0 or absent."""
    changes = {"dspark_n_routed_experts": own, "dspark_num_experts_per_tok": own}
    config = read(tmp_path, nested(**changes))
    assert (config.n_experts, config.n_active_experts) == (384, 6)


def test_one_file_fills_in_what_the_other_leaves_out(tmp_path: Path) -> None:
    config = nested(sliding_window=...)
    assert read(tmp_path, config, REFERENCE) == LIVE


def test_files_that_disagree_are_both_named(tmp_path: Path) -> None:
    message = refusal(tmp_path, nested(), REFERENCE | {"window_size": 64})
    assert "inference_config.json: window_size: 64" in message
    assert "config.json: text_config.sliding_window is 128" in message


def test_a_file_that_contradicts_itself_names_both_keys(tmp_path: Path) -> None:
    message = refusal(tmp_path, nested() | {"hidden_size": 4096})
    assert "hidden_size: does not agree with text_config.hidden_size" in message
    assert "dim: " in refusal(tmp_path, HUGGING_FACE | {"dim": 4096})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", 0),
        ("hidden_size", -64),
        ("hidden_size", 64.0),
        ("hidden_size", "64"),
        ("hidden_size", True),
        ("hidden_size", 1 << 40),
        ("vocab_size", 1),
        ("qk_rope_head_dim", 63),
        ("qk_rope_head_dim", 514),
        ("o_groups", 7),
        ("dspark_num_experts_per_tok", 129),
        ("dspark_noise_token_id", 129280),
        ("dspark_noise_token_id", -1),
        ("dspark_block_size", 0),
        ("dspark_block_size", 256),
        ("sliding_window", 0),
        ("sliding_window", 65536),
        ("dspark_target_layer_ids", []),
        ("dspark_target_layer_ids", [35, 36, 37, 38, 39]),
        ("dspark_target_layer_ids", [38, 38]),
        ("dspark_target_layer_ids", [38, 39, 40]),
        ("dspark_target_layer_ids", [-1]),
        ("dspark_target_layer_ids", ["37"]),
        ("dspark_target_layer_ids", 37),
        ("rms_norm_eps", -1e-6),
        ("rms_norm_eps", "1e-6"),
        ("rope_theta", 0),
        ("swiglu_limit", 0),
        ("hc_sinkhorn_iters", 0),
        ("hc_sinkhorn_iters", 1e1),
        ("num_nextn_predict_layers", 0),
        ("scoring_func", "sigmoid"),
        ("norm_topk_prob", False),
        ("topk_method", "greedy"),
        ("n_shared_experts", 2),
        ("num_key_value_heads", 8),
        ("gate_temp", 0.5),
        ("compress_ratios", [0] * 42 + [4]),
    ],
)
def test_an_impossible_value_names_file_and_key(tmp_path: Path, key: str, value: object) -> None:
    """Ids past the last layer are V4's way to count taps (pitfall 7)."""
    message = refusal(tmp_path, nested(**{key: value}))
    assert f"{tmp_path / 'config.json'}: text_config.{key}: " in message


def test_ratios_that_end_with_the_backbone_say_nothing_of_the_draft_layers(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(nested(compress_ratios=[0, 0, *[1] * 38])))
    assert read_model_config(CheckpointFiles(tmp_path, path, None, None, ())).n_layers == 3


@pytest.mark.parametrize("bad", ["NaN", "Infinity", "1e999", "1" + "0" * 400])
def test_a_number_that_is_not_finite_is_refused(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(nested(rms_norm_eps="@")).replace('"@"', bad))
    with pytest.raises(CheckpointError, match="rms_norm_eps"):
        read_model_config(CheckpointFiles(tmp_path, path, None, None, ()))


@pytest.mark.parametrize("key", [k for k in REFERENCE if k != "score_func"])
def test_a_value_that_is_stated_nowhere_is_asked_for_by_name(tmp_path: Path, key: str) -> None:
    absent = {k: v for k, v in REFERENCE.items() if k != key}
    expected = "n_routed_experts" if key == "dspark_n_routed_experts" else key
    expected = "n_activated_experts" if key == "dspark_n_activated_experts" else expected
    message = refusal(tmp_path, None, absent)
    assert "is stated nowhere" in message
    assert expected in message


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b"\xff", b'{"a":1,"a":2}', b'{"text_config":3}']
)
def test_a_config_that_is_no_object_is_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json: ") as caught:
        read_model_config(CheckpointFiles(tmp_path, path, None, None, ()))
    assert "\n" not in str(caught.value)
