"""What is stored against what is needed: formats, missing, unknown, wrong (spec §2)."""

import dataclasses
from pathlib import Path

import pytest

from dsparkctl.checkpoint.header import ITEM_BYTES, TensorInfo
from dsparkctl.checkpoint.inspection import Format, Inspection, compare
from dsparkctl.checkpoint.tensors import Expected, Kind, expected_tensors
from tests.unit.checkpoint.test_model_config import LIVE

TINY = dataclasses.replace(
    LIVE,
    vocab_size=64,
    hidden=64,
    n_heads=2,
    head_dim=80,
    rope_dim=16,
    q_rank=48,
    o_groups=2,
    o_rank=16,
    expert_hidden=32,
    n_layers=2,
    n_experts=4,
    noise_token_id=0,
    markov_rank=8,
)
SHARD, OTHER = Path("dir/model-1.safetensors"), Path("dir/model-2.safetensors")
Header = dict[str, TensorInfo]


def info(dtype: str, *shape: int) -> TensorInfo:
    n_bytes = ITEM_BYTES[dtype]
    for size in shape:
        n_bytes *= size
    return TensorInfo(dtype, shape, 100, 100 + n_bytes)


def plain() -> Header:
    return {e.name: info("BF16", *e.shape) for e in expected_tensors(TINY)}


def release() -> Header:
    header: Header = {}
    for expected in expected_tensors(TINY):
        header |= stored(expected)
    return header


def stored(expected: Expected) -> Header:
    """One tensor as the release stores it."""
    if expected.kind is Kind.FLOAT:
        return {expected.name: info("BF16", *expected.shape)}
    n_out, n_in = expected.shape
    if expected.kind is Kind.DENSE:
        scale = info("F8_E8M0", -(-n_out // 32), -(-n_in // 32))
        return {expected.name: info("F8_E4M3", n_out, n_in), expected.scale_name: scale}
    scale = info("F8_E8M0", n_out, n_in // 32)
    return {expected.name: info("I8", n_out, n_in // 2), expected.scale_name: scale}


def inspected(header: Header) -> Inspection:
    return compare({SHARD: header}, TINY, SHARD)


def the_problem(header: Header) -> str:
    problems = inspected(header).problems
    assert len(problems) == 1
    return str(problems[0].error())


@pytest.mark.parametrize("make", [plain, release])
def test_a_checkpoint_in_order_has_no_problem_and_a_row_for_every_tensor(make: object) -> None:
    assert callable(make)
    header = make()
    found = inspected(header)
    assert found.ok
    assert found.problems == ()
    assert [row.name for row in found.rows] == sorted(header)
    assert sum(row.n_bytes for row in found.rows) == sum(i.n_bytes for i in header.values())


def test_rows_say_how_each_tensor_is_stored() -> None:
    formats = {row.name: row.format for row in inspected(release()).rows}
    assert formats["mtp.0.main_proj.weight"] is Format.FP8
    assert formats["mtp.0.main_proj.scale"] is Format.SCALE
    assert formats["mtp.1.ffn.experts.3.w2.weight"] is Format.FP4
    assert formats["mtp.1.ffn.shared_experts.w2.weight"] is Format.FP8
    assert formats["mtp.1.hc_ffn_scale"] is Format.PLAIN
    assert formats["mtp.1.ffn.gate.bias_vl"] is Format.IGNORED


@pytest.mark.parametrize("name", list(release()))
def test_every_tensor_and_every_scale_is_missed(name: str) -> None:
    """Pitfalls 1 and 2: all but the vision bias."""
    header = release()
    removed = header.pop(name)
    found = inspected(header)
    if name.endswith("bias_vl"):
        assert found.ok
    elif removed.dtype in ("F8_E4M3", "I8"):
        assert (found.missing, found.unknown) == ((name,), (f"{name[:-7]}.scale",))
    else:
        assert found.missing == (name,)
        assert not found.unknown


@pytest.mark.parametrize("name", list(release()))
def test_every_shape_is_checked(name: str) -> None:
    header = release()
    header[name] = info(header[name].dtype, *header[name].shape, 1)
    message = the_problem(header)
    assert message.startswith(f"{SHARD}: {name}: has shape ")


def test_a_scale_beside_a_plain_weight_is_unknown() -> None:
    header = plain() | {"mtp.0.main_proj.scale": info("F8_E8M0", 2, 6)}
    assert inspected(header).unknown == ("mtp.0.main_proj.scale",)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("head.weight", "F8_E4M3"),
        ("mtp.0.attn.wkv.weight", "I8"),
        ("mtp.0.ffn.experts.0.w1.weight", "F8_E4M3"),
        ("mtp.0.hc_attn_fn", "F64"),
        ("mtp.0.ffn.gate.bias_vl", "I32"),
    ],
)
def test_a_tensor_in_a_dtype_that_is_not_its_own_is_wrong(name: str, dtype: str) -> None:
    header = plain()
    header[name] = info(dtype, *header[name].shape)
    message = the_problem(header)
    assert f"{name}: is stored as {dtype}" in message


def test_a_scale_is_e8m0() -> None:
    """Not V3's fp32 scales: they would be read as other numbers."""
    header = release()
    name = "mtp.0.main_proj.scale"
    header[name] = info("F32", *header[name].shape)
    assert f"{name}: is stored as F32" in the_problem(header)


def test_fp4_needs_inputs_in_groups_of_32() -> None:
    """Its scale has no shape otherwise; the plain form would do."""
    config = dataclasses.replace(TINY, expert_hidden=48)
    header = {e.name: info("BF16", *e.shape) for e in expected_tensors(config)}
    header["mtp.0.ffn.experts.0.w2.weight"] = info("I8", 64, 24)
    (problem,) = compare({SHARD: header}, config, SHARD).problems
    assert "groups of 32" in problem.what


@pytest.mark.parametrize(
    "name",
    ["mtp.2.norm.weight", "mtp.0.hc_head_fn", "xmtp.0.main_norm.weight", "d2t", "norm.weight",
     "mtp.0.ffn.experts.4.w1.weight", "mtp.0.attn.wq_a.bias", "layers.0.ffn_norm.weight"],
)  # fmt: skip
def test_names_are_matched_whole(name: str) -> None:
    """Pitfalls 10 and 11: neither by prefix nor by suffix."""
    message = the_problem(plain() | {name: info("BF16", 64)})
    assert message == f"{SHARD}: {name}: is no tensor of this model"


def test_a_tensor_in_two_shards_names_both() -> None:
    found = compare({SHARD: plain(), OTHER: {"head.weight": info("BF16", 64, 64)}}, TINY, SHARD)
    (problem,) = found.problems
    assert str(problem.error()) == f"{OTHER}: head.weight: stands in {SHARD.name} too"


def test_exl3_layers_are_recognised_by_their_suffixes() -> None:
    """Slices and biases belong to their layer; no `P.weight` is missed."""
    header = plain()
    for name in ("mtp.0.main_proj", "mtp.0.attn.wo_a", "head"):
        del header[f"{name}.weight"]
    sizes = {"mtp.0.main_proj": (256, 128), "mtp.0.attn.wo_a.0": (128, 128),
             "mtp.0.attn.wo_a.1": (128, 128), "head": (128, 128)}  # fmt: skip
    exl3: Header = {}
    for prefix, (n_in, n_out) in sizes.items():
        exl3 |= exl3_layer(prefix, n_in, n_out)
    exl3["mtp.0.main_proj.bias"] = info("F16", 128)
    for scales, packed in (("suh", "su"), ("svh", "sv")):
        del exl3[f"head.{scales}"]
        exl3[f"head.{packed}"] = info("I16", 8)
    found = inspected(header | exl3)
    assert found.problems == ()
    assert {row.name for row in found.rows if row.format is Format.EXL3} == set(exl3)
    assert [layer.prefix for layer in found.exl3_layers] == sorted(sizes)
    assert [part.n_out for part in found.exl3_weights["mtp.0.attn.wo_a.weight"].parts] == [16, 16]


def exl3_layer(prefix: str, n_in: int, n_out: int) -> Header:
    return {
        f"{prefix}.trellis": info("I16", n_in // 16, n_out // 16, 80),
        f"{prefix}.suh": info("F16", n_in),
        f"{prefix}.svh": info("F16", n_out),
    }


@pytest.mark.parametrize("suffix", ["trellis", "suh", "svh"])
def test_a_damaged_exl3_layer_is_a_problem_with_its_file_and_tensor(suffix: str) -> None:
    header = plain()
    del header["mtp.0.main_proj.weight"]
    exl3 = exl3_layer("mtp.0.main_proj", 256, 128)
    del exl3[f"mtp.0.main_proj.{suffix}"]
    found = compare({SHARD: header, OTHER: exl3}, TINY, SHARD)
    (problem,) = found.problems
    assert str(problem.error()).startswith(f"{OTHER}: mtp.0.main_proj.{suffix}: is missing")


def test_an_exl3_layer_beside_its_plain_weight_is_ambiguous() -> None:
    message = the_problem(plain() | exl3_layer("mtp.0.main_proj", 256, 128))
    assert "mtp.0.main_proj.weight: stands beside a trellis" in message


def test_an_exl3_layer_that_the_model_has_not_is_unknown() -> None:
    found = inspected(plain() | {"mtp.7.main_proj.trellis": info("I16", 4)})
    assert found.unknown == ("mtp.7.main_proj.trellis",)
