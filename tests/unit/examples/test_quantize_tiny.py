"""Where the EXL3 fixture puts each tensor: the live checkpoint's files (contract §6.7)."""

from collections import Counter

import torch

from dsparkctl.checkpoint.files import find_files
from dsparkctl.checkpoint.model_config import read_model_config
from dsparkctl.checkpoint.tensors import Kind, expected_tensors
from examples.quantize_tiny import SOURCE, as_stored, place_of, plain_weights

CONFIG = read_model_config(find_files(SOURCE))


def test_packed_layers_are_those_of_the_live_build_each_with_its_k() -> None:
    places = {expected.name: place_of(expected) for expected in expected_tensors(CONFIG)}
    assert places["head.weight"] == ("model-exl3-head.safetensors", 6)
    assert places["mtp.0.main_proj.weight"] == ("model-exl3-mtp.safetensors", 5)
    assert places["mtp.1.attn.wo_a.weight"] == ("model-exl3-mtp.safetensors", 5)
    assert places["mtp.1.ffn.experts.7.w3.weight"] == ("model-exl3-mtp-experts.safetensors", 4)
    assert places["embed.weight"] == ("model-00002-of-00046.safetensors", None)
    assert places["mtp.0.main_norm.weight"] == ("model-00043-of-00046.safetensors", None)
    assert places["mtp.1.ffn.gate.bias"] == ("model-00044-of-00046.safetensors", None)
    assert places["mtp.1.norm.weight"] == ("model-00045-of-00046.safetensors", None)
    assert places["mtp.1.markov_head.head.weight"] == ("model-00046-of-00046.safetensors", None)
    assert len(Counter(file for file, _ in places.values())) == 8


def test_what_stays_plain_keeps_what_it_had() -> None:
    """Markov and confidence in F16; the release's own values in every weight."""
    weights = plain_weights(SOURCE, CONFIG)
    for expected in expected_tensors(CONFIG):
        if expected.name not in weights or expected.kind is not Kind.FLOAT:
            continue
        stored = as_stored(expected, weights[expected.name])
        is_half = "markov_head" in expected.name or "confidence_head" in expected.name
        if is_half:
            assert stored.dtype == torch.float16
        else:
            assert torch.equal(stored.float(), weights[expected.name])
