"""One layer of a file as plain numbers; every kind of damage is one line with its tensor (§10)."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from dspark_worker.model.exl3.export import dequantized
from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.checkpoint.exl3 import MARKERS
from tests.unit.dspark_worker.model.exl3 import layers

Tensors = dict[str, Tensor]


def file_of(folder: Path, tensors: Tensors, prefix: str = "P") -> Path:
    path = folder / "some.safetensors"
    save_file({f"{prefix}.{suffix}": t.contiguous() for suffix, t in tensors.items()}, path)
    return path


def layer() -> Tensors:
    return layers.tensors(128, 256, 5, seed=3, scale=0.1)


def refusal(path: Path, key: str = "P") -> str:
    with pytest.raises(CheckpointError) as caught:
        dequantized(path, key, inner=False)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{path}: ")
    return message


def test_a_sound_layer_gives_its_weight_its_bias_or_its_inner_matrix(tmp_path: Path) -> None:
    path = file_of(tmp_path, layer() | {"bias": torch.ones(256, dtype=torch.float16)})
    found = dequantized(path, "P", inner=False)
    assert {name: (t.dtype, tuple(t.shape)) for name, t in found.items()} == {
        "weight": (torch.float32, (128, 256)),
        "bias": (torch.float32, (256,)),
    }
    inner = dequantized(path, "P", inner=True)
    assert {name: (t.dtype, tuple(t.shape)) for name, t in inner.items()} == {
        "inner": (torch.float16, (128, 256))
    }


@pytest.mark.parametrize("n_layers", [1, 3])
def test_a_stack_gives_its_layers_one_behind_another(tmp_path: Path, n_layers: int) -> None:
    """§9: rank 4, also as U16, which is the same bits."""
    parts = [layers.tensors(128, 256, 4, seed=seed, scale=0.1) for seed in range(n_layers)]
    names = ("trellis", "suh", "svh")
    stack = {name: torch.stack([part[name] for part in parts]) for name in names}
    stack["trellis"] = stack["trellis"].view(torch.uint16)
    found = dequantized(file_of(tmp_path, stack | {"mul1": parts[0]["mul1"]}), "P", inner=False)[
        "weight"
    ]
    assert found.shape == (n_layers, 128, 256)
    for n, part in enumerate(parts):
        alone = dequantized(file_of(tmp_path, part), "P", inner=False)["weight"]
        assert torch.equal(found[n], alone)


def test_packed_signs_are_those_scales(tmp_path: Path) -> None:
    """§6."""
    tensors = layer()
    del tensors["suh"], tensors["svh"]
    words = {"su": torch.tensor([-1] * 8, dtype=torch.int16)}
    words["sv"] = torch.tensor([0] * 16, dtype=torch.int16)
    ones = {"suh": -torch.ones(128).half(), "svh": torch.ones(256).half()}
    packed = dequantized(file_of(tmp_path, tensors | words), "P", inner=False)["weight"]
    scales = dequantized(file_of(tmp_path, tensors | ones), "P", inner=False)["weight"]
    assert torch.equal(packed, scales)


def with_value(suffix: str, at: int, value: float) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors.setdefault(suffix, torch.zeros(256, dtype=torch.float16))[at] = value

    return change


def marker(value: int, dtype: torch.dtype = torch.int32) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update(mul1=torch.tensor(value, dtype=dtype))


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        (with_value("suh", 5, float("nan")), "P.suh", "not finite"),
        (with_value("svh", 255, float("inf")), "P.svh", "not finite"),
        (with_value("bias", 0, float("-inf")), "P.bias", "not finite"),
        (marker(0), "P.mul1", "is 0x00000000; the mul1 codebook's constant is 0x83DCD12D"),
        (marker(MARKERS["mcg"] - (1 << 32)), "P.mul1", "is 0xCBAC1FED"),
        (marker(MARKERS["mul1"] - (1 << 32), torch.int64), "P.mul1", "is stored as I64"),
        (lambda t: t.update(mcg=t["mul1"].clone()), "P.mul1", "beside mcg"),
        (lambda t: t.update(trellis=t["trellis"].float()), "P.trellis", "is stored as F32"),
        (lambda t: t.update(trellis=t["trellis"][:7]), "P.trellis", "in = 112"),
        (lambda t: t.update(trellis=t["trellis"][..., :79]), "P.trellis", "79 words"),
        (lambda t: t.update(suh=t["suh"][:-1]), "P.suh", "[127]"),
        (lambda t: t.update(svh=t["svh"].float()), "P.svh", "is stored as F32"),
        (lambda t: t.update(su=torch.zeros(8, dtype=torch.int16)), "P.su", "beside suh"),
        (lambda t: t.update(weight=torch.zeros(2)), "P.weight", "beside a trellis"),
        (lambda t: t.update(scale=torch.zeros(2)), "P.scale", "obsolete"),
        (lambda t: t.update(other=torch.zeros(2)), "P.other", "no tensor of an EXL3 layer"),
        (lambda t: t.pop("suh"), "P.suh", "is missing"),
        (lambda t: t.pop("trellis"), "P.trellis", "is missing"),
    ],
)
def test_each_damage_names_its_tensor_and_says_what_is_wrong(
    tmp_path: Path, change: Callable[[Tensors], object], name: str, words: str
) -> None:
    tensors = layer()
    change(tensors)
    message = refusal(file_of(tmp_path, tensors))
    assert f": {name}: " in message
    assert words in message


def test_zeros_among_the_output_scales_are_legal(tmp_path: Path) -> None:
    """§1: a dead output."""
    tensors = layer()
    tensors["svh"][7] = 0
    weight = dequantized(file_of(tmp_path, tensors), "P", inner=False)["weight"]
    assert not weight[:, 7].any()
    assert weight[:, 8].all()


def test_a_marker_may_be_a_list_of_one_and_unsigned(tmp_path: Path) -> None:
    tensors = layer()
    tensors["mul1"] = tensors["mul1"].view(torch.uint32).reshape(1)
    assert dequantized(file_of(tmp_path, tensors), "P", inner=False)


@pytest.mark.parametrize("key", ["Q", "", "P.trellis", "p"])
def test_a_key_that_is_not_there_is_one_line(tmp_path: Path, key: str) -> None:
    expected = f": holds no EXL3 layer {key}: of that name there is nothing"
    assert refusal(file_of(tmp_path, layer()), key).endswith(expected)


def edited_header(path: Path, edit: Callable[[dict[str, dict[str, object]]], None]) -> None:
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])
    edit(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda h: h["P.trellis"].update(shape=[8, 16, 96]), "P.trellis: I16 [8, 16, 96] needs"),
        (lambda h: h["P.trellis"].update(shape=[-8, 16, 80]), "P.trellis: shape"),
        (lambda h: h["P.trellis"].update(shape=[True, 16, 640]), "P.trellis: shape"),
        (lambda h: h["P.trellis"].update(shape=[1 << 62, 1 << 62, 80]), "P.trellis: shape"),
        (lambda h: h["P.trellis"].update(dtype="I17"), "P.trellis: dtype"),
        (lambda h: h["P.suh"].update(data_offsets=[0, 256]), "overlaps"),
        (lambda h: h.pop("P.suh"), "unused"),
    ],
)
def test_a_header_that_lies_is_refused_before_data_is_read(
    tmp_path: Path, edit: Callable[[dict[str, dict[str, object]]], None], words: str
) -> None:
    path = file_of(tmp_path, layer())
    edited_header(path, edit)
    assert words in refusal(path)


@pytest.mark.parametrize("n_bytes", [0, 7, 100, 5000])
def test_a_truncated_file_is_refused(tmp_path: Path, n_bytes: int) -> None:
    path = file_of(tmp_path, layer())
    path.write_bytes(path.read_bytes()[:n_bytes])
    assert refusal(path)
