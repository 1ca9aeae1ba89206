"""What is loaded, from which format, and what is refused on one line (spec §2, §13)."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dspark_worker.model import load as load_module
from dspark_worker.model.dequant import fp4_packed, fp8_tiles
from dspark_worker.model.load import load_drafter
from dsparkctl.checkpoint.errors import CheckpointError
from tests.unit.dspark_worker.model import tiny


def refusal(directory: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        tiny.load(directory)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_release_checkpoint_drafts_as_its_dequantised_copy(tmp_path: Path, dtype: str) -> None:
    """fp8 tiles and packed fp4 against the same values as plain fp32."""
    release, plain = tmp_path / "release", tmp_path / "plain"
    tensors = tiny.write(release, release=True)
    tiny.write(plain)
    unpacked = {}
    for name, tensor in tensors.items():
        scale = tensors.get(name.removesuffix(".weight") + ".scale")
        if name.endswith(".scale"):
            continue
        if tensor.dtype == torch.float8_e4m3fn:
            assert scale is not None
            tensor = fp8_tiles(tensor, scale)
        elif tensor.dtype == torch.int8:
            assert scale is not None
            tensor = fp4_packed(tensor, scale)
        unpacked[name] = tensor
    assert len(tensors) > len(unpacked) + 12
    save_file(unpacked, plain / "model.safetensors")
    drafts = []
    for directory in (release, plain):
        drafter = tiny.load(directory, dtype=dtype)
        drafter.append([tiny.part(0, 0, tiny.make_rows(drafter, 8))])
        drafts.append(tiny.draft(drafter, [tiny.request(0, 0, 8, 3, of=drafter)]))
    assert drafts[0] == drafts[1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_small_heads_are_accepted_in_every_plain_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    """Pitfall 12: never silently off."""
    tensors = tiny.write(tmp_path)
    small = [name for name in tensors if "markov_head" in name or "confidence" in name]
    assert len(small) == 3
    tiny.edit(tmp_path, {name: tensors[name].to(dtype) for name in small})
    drafter = tiny.load(tmp_path)
    assert tiny.draft(drafter, [tiny.request(0, 0, 0, 3, of=drafter)])


def test_f16_heads_keep_every_bit_in_a_bf16_model(tmp_path: Path) -> None:
    """They are used as fp32 (§2); a detour over bf16 would cost three bits."""
    tensors = tiny.write(tmp_path)
    name = "mtp.2.confidence_head.proj.weight"
    sharp = tensors[name].float() + 2.0**-9
    outputs = []
    for dtype in (torch.float16, torch.float32):
        tiny.edit(tmp_path, {name: sharp.to(torch.float16).to(dtype)})
        drafter = tiny.load(tmp_path, dtype="bfloat16")
        outputs.append(tiny.draft(drafter, [tiny.request(0, 0, 0, 3, of=drafter)]))
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(
    "name", ["mtp.1.ffn_norm.weight", "mtp.0.ffn.shared_experts.w2.weight", "head.weight"]
)
def test_a_missing_tensor_is_named_with_its_file(tmp_path: Path, name: str) -> None:
    """Pitfalls 1 and 2: nothing keeps a default."""
    tiny.write(tmp_path)
    tiny.edit(tmp_path, {name: None})
    assert refusal(tmp_path) == f"{tmp_path / 'model.safetensors'}: {name}: is missing"


@pytest.mark.parametrize(
    "name", ["d2t", "mtp.2.markov_head.markov_w1.weight", "mtp.0.hc_head_fn", "mtp.3.norm.weight"]
)
def test_a_tensor_that_is_none_of_the_models_is_refused(tmp_path: Path, name: str) -> None:
    """Pitfall 11 and §9: no remap table, no V4 names, no fourth layer."""
    tiny.write(tmp_path)
    tiny.edit(tmp_path, {name: torch.zeros(3)})
    assert f"model.safetensors: {name}: " in refusal(tmp_path)


def test_a_wrong_shape_names_both_shapes(tmp_path: Path) -> None:
    tiny.write(tmp_path)
    tiny.edit(tmp_path, {"mtp.0.main_norm.weight": torch.ones(31)})
    message = refusal(tmp_path)
    assert "model.safetensors: mtp.0.main_norm.weight: " in message
    assert "[31]" in message
    assert "[32]" in message


def test_the_vision_bias_may_be_absent(tmp_path: Path) -> None:
    """§1: bias_vl may be there without vision_config, and need not be there with it."""
    tensors = tiny.write(tmp_path)
    before = tiny.load(tmp_path)
    tiny.edit(tmp_path, {name: None for name in tensors if name.endswith("bias_vl")})
    after = tiny.load(tmp_path)
    requests = [tiny.request(0, 0, 0, 3, of=before)]
    assert tiny.draft(before, requests) == tiny.draft(after, requests)


def test_a_truncated_shard_is_refused_before_its_data_is_read(tmp_path: Path) -> None:
    tiny.write(tmp_path)
    shard = tmp_path / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    assert "truncated" in refusal(tmp_path)


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cpu:0", "cuda:4095", ""])
def test_a_device_that_is_not_here_is_one_line(tmp_path: Path, device: str) -> None:
    tiny.write(tmp_path)
    with pytest.raises(CheckpointError, match=f"device .*{re.escape(device)}"):
        load_drafter(tmp_path, device=device, dtype="float32", kv_quant="none", max_slots=1)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"dtype": "float16"}, "dtype"),
        ({"kv_quant": "fp8"}, "kv-quant"),
        ({"kv_quant": "v4_record_64"}, "kv-quant"),
        ({"max_slots": 0}, "max-slots"),
    ],
)
def test_a_choice_that_cannot_be_served_is_one_line(
    tmp_path: Path, changed: dict[str, str | int], named: str
) -> None:
    tiny.write(tmp_path)
    options: dict[str, str | int] = {
        "device": "cpu", "dtype": "float32", "kv_quant": "none", "max_slots": 1
    }  # fmt: skip
    with pytest.raises(CheckpointError, match=named):
        load_drafter(tmp_path, **(options | changed))  # type: ignore[arg-type]


def test_running_out_of_memory_is_one_line_that_names_the_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.write(tmp_path, release=True)

    def full(*_: object) -> torch.Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 1 TB\nat frame 0")

    monkeypatch.setattr("dspark_worker.model.weights.fp8_tiles", full)
    message = refusal(tmp_path)
    assert "model.safetensors: mtp.0.main_proj.weight: " in message
    assert "memory" in message


def test_windows_that_do_not_fit_are_one_line(tmp_path: Path) -> None:
    tiny.write(tmp_path)
    with pytest.raises(CheckpointError, match="slots do not fit"):
        tiny.load(tmp_path, max_slots=1 << 40)


def test_a_tensor_that_the_model_forgets_is_our_own_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tensor is consumed exactly once: a model with one layer less does not pass."""
    tiny.write(tmp_path)
    assemble = load_module.assemble

    def forgetful(weights: object, *rest: object) -> object:
        weights._rows["mtp.0.spare"] = None  # type: ignore[attr-defined]
        return assemble(weights, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(load_module, "assemble", forgetful)
    with pytest.raises(AssertionError, match=r"mtp\.0\.spare"):
        tiny.load(tmp_path)
