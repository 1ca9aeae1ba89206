"""Plan and quantization_config against the tensors: checked, never trusted (exl3 specification §8).

Every statement that a tensor belies is named with both sides; what is not recognised is passed over.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.checkpoint.files import CheckpointFiles
from dsparkctl.checkpoint.plan import Stored, contradictions

SHARD = Path("/c/model.safetensors")
W1 = "mtp.0.ffn.experts.17.w1"

STORED = {
    f"{W1}.trellis": Stored("I16", (320, 144, 64), 5898240, SHARD),
    f"{W1}.suh": Stored("F16", (5120,), 10240, SHARD),
    "mtp.0.main_proj.trellis": Stored("I16", (960, 320, 80), 49152000, SHARD),
    "head.trellis": Stored("I16", (320, 8080, 96), 496435200, SHARD),
    "mtp.0.attn.wkv.weight": Stored("F8_E4M3", (512, 5120), 2621440, SHARD),
}


def found(
    tmp_path: Path, *, plan: dict[str, Any] | None = None, config: dict[str, Any] | None = None
) -> list[str]:
    paths: list[Path | None] = []
    for name, value in (
        ("exl3_moe_plan.json", plan),
        ("config.json", None if config is None else {"quantization_config": config}),
    ):
        path = tmp_path / name
        if value is not None:
            path.write_text(json.dumps(value))
        paths.append(path if value is not None else None)
    files = CheckpointFiles(tmp_path, paths[1], None, paths[0], (SHARD,))
    return [f"{one.tensor}: {one.what}" for one in contradictions(files, STORED, fp8_tile=32)]


TRUE = {
    "exl3_moe": {"dense": {"drafter": {"main_proj": 5}}},
    "head_bits": 6,
    "bits": 4.03,
    "layers": {W1: 4, "mtp.9.unknown": 3, f"{W1}x": "four"},
    "tensor_storage": {
        W1: {
            "stored_tensors": {
                f"{W1}.trellis": {
                    "shape": [320, 144, 64],
                    "n_bytes": 5898240,
                    "dtype": "torch.int16",
                },
                f"{W1}.suh": {"shape": [5120], "n_bytes": 10240, "dtype": "torch.float16"},
            },
            "quant_format": "exl3",
            "bits_per_weight": 4,
        }
    },
    "weight_block_size": [32, 32],
    "original_quantization_config": {"head_bits": 8},
}


def test_notes_that_are_true_are_not_in_the_way(tmp_path: Path) -> None:
    assert found(tmp_path, plan=TRUE, config=TRUE) == []


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (
            {"dense": {"drafter": {"main_proj": 4}}},
            "mtp.0.main_proj.trellis: FILE: PLACEdense.drafter.main_proj says K 4, the tensor has"
            " K 5",
        ),
        ({"head_bits": 8}, "head.trellis: FILE: PLACEhead_bits says K 8, the tensor has K 6"),
        ({W1: 3.5}, f"{W1}.trellis: FILE: PLACE{W1} says K 3.5, the tensor has K 4"),
        (
            {"layers": [{W1: {"bits_per_weight": 3}}]},
            f"{W1}.trellis: FILE: PLACElayers.{W1} says K 3, the tensor has K 4",
        ),
        (
            {f"{W1}.trellis": {"shape": [320, 144, 48], "dtype": "int16"}},
            f"{W1}.trellis: FILE: PLACE{W1}.trellis says shape [320, 144, 48], the tensor has"
            " [320, 144, 64]",
        ),
        (
            {f"{W1}.suh": {"shape": [5120], "dtype": "float32"}},
            f"{W1}.suh: FILE: PLACE{W1}.suh says dtype float32, the tensor has F16",
        ),
        (
            {f"{W1}.suh": {"shape": [5120], "n_bytes": 7}},
            f"{W1}.suh: FILE: PLACE{W1}.suh says 7 bytes, the tensor has 10240",
        ),
    ],
)
def test_a_statement_that_a_tensor_belies_is_named_with_both_sides(
    tmp_path: Path, said: dict[str, Any], line: str
) -> None:
    in_plan = line.replace("FILE", "exl3_moe_plan.json").replace("PLACE", "")
    assert found(tmp_path, plan=said) == [in_plan]
    (tmp_path / "exl3_moe_plan.json").unlink()
    in_config = line.replace("FILE", "config.json").replace("PLACE", "quantization_config.")
    assert found(tmp_path, config=said) == [in_config]


def test_an_fp8_tile_of_another_size_is_a_contradiction(tmp_path: Path) -> None:
    (line,) = found(tmp_path, config={"weight_block_size": [128, 128]})
    assert "weight_block_size says [128, 128], the tensor has [32, 32]" in line


def test_notes_of_any_kind_never_crash(tmp_path: Path) -> None:
    odd: dict[str, Any] = {W1: {"bits": [4]}, "head_bits": "6", f"{W1}.suh": {"shape": "x"}}
    assert found(tmp_path, plan=odd, config={"weight_block_size": 128, "head_bits": True}) == []


def test_a_bottomless_note_is_refused(tmp_path: Path) -> None:
    deep: dict[str, Any] = {}
    for _ in range(30):
        deep = {"a": deep}
    with pytest.raises(CheckpointError, match="nested deeper than 16"):
        found(tmp_path, plan=deep)
