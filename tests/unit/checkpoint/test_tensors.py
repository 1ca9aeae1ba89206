"""The table of tensors against the specification's §2, at the live shape."""

import dataclasses

import pytest

from dsparkctl.checkpoint.tensors import Expected, Kind, expected_tensors
from tests.unit.checkpoint.test_model_config import LIVE

TABLE = {expected.name: expected for expected in expected_tensors(LIVE)}


def test_every_name_stands_once() -> None:
    assert len(TABLE) == sum(1 for _ in expected_tensors(LIVE))
    # 4 at the front, 4 at the last layer's end; a layer has 19, and 3 for each of 129 experts
    assert len(TABLE) == 4 + 4 + 3 * (19 + 3 * 129)


@pytest.mark.parametrize(
    ("name", "shape", "kind"),
    [
        ("embed.weight", (129280, 5120), Kind.FLOAT),
        ("head.weight", (129280, 5120), Kind.FLOAT),
        ("mtp.0.main_proj.weight", (5120, 15360), Kind.DENSE),
        ("mtp.2.attn.wq_a.weight", (1280, 5120), Kind.DENSE),
        ("mtp.2.attn.wq_b.weight", (32768, 1280), Kind.DENSE),
        ("mtp.2.attn.wkv.weight", (512, 5120), Kind.DENSE),
        ("mtp.2.attn.attn_sink", (64,), Kind.FLOAT),
        ("mtp.2.attn.wo_a.weight", (8192, 4096), Kind.DENSE),
        ("mtp.2.attn.wo_b.weight", (5120, 8192), Kind.DENSE),
        ("mtp.1.hc_attn_fn", (24, 20480), Kind.FLOAT),
        ("mtp.1.hc_ffn_base", (24,), Kind.FLOAT),
        ("mtp.1.hc_ffn_scale", (3,), Kind.FLOAT),
        ("mtp.0.ffn.gate.weight", (128, 5120), Kind.FLOAT),
        ("mtp.0.ffn.experts.127.w1.weight", (2304, 5120), Kind.EXPERT),
        ("mtp.0.ffn.experts.0.w2.weight", (5120, 2304), Kind.EXPERT),
        ("mtp.0.ffn.shared_experts.w3.weight", (2304, 5120), Kind.DENSE),
        ("mtp.2.norm.weight", (5120,), Kind.FLOAT),
        ("mtp.2.markov_head.head.weight", (129280, 256), Kind.FLOAT),
        ("mtp.2.confidence_head.proj.weight", (1, 5376), Kind.FLOAT),
    ],
)
def test_the_live_shapes_are_those_of_the_release(
    name: str, shape: tuple[int, ...], kind: Kind
) -> None:
    assert TABLE[name] == Expected(name, shape, kind)


def test_only_the_vision_bias_is_optional() -> None:
    optional = [name for name, expected in TABLE.items() if expected.optional]
    assert optional == [f"mtp.{s}.ffn.gate.bias_vl" for s in range(3)]


def test_the_heads_hang_on_the_last_layer_whatever_its_number() -> None:
    names = {e.name for e in expected_tensors(dataclasses.replace(LIVE, n_layers=1))}
    assert {"mtp.0.norm.weight", "mtp.0.markov_head.embed.weight"} <= names
    assert not any(name.startswith("mtp.1") for name in names)
