"""Which files of a folder are the checkpoint (issue: everything else is ignored)."""

import json
import os
from pathlib import Path

import pytest

from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.checkpoint.files import find_files


def touch(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).write_bytes(b"{}")


def index(directory: Path, weight_map: object, name: str = "model.safetensors.index.json") -> None:
    (directory / name).write_text(json.dumps({"weight_map": weight_map}))


def refusal(directory: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        find_files(directory)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_configs_plan_and_model_shards_are_taken_and_nothing_else(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "config.json",
        "inference_config.json",
        "exl3_moe_plan.json",
        "model-00002-of-00002.safetensors",
        "model-00001-of-00002.safetensors",
        "README.md",
        "expected.safetensors",
        "inputs.safetensors",
        "tokenizer.json",
        "model.safetensors.bak",
    )
    (tmp_path / "other-dir.safetensors").mkdir()
    found = find_files(tmp_path)
    assert [path.name for path in found.sources] == [
        "config.json",
        "inference_config.json",
        "exl3_moe_plan.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]


@pytest.mark.parametrize(
    "name", ["config.json", "inference_config.json", "exl3_moe_plan.json", "model-2.safetensors"]
)
@pytest.mark.parametrize("kind", ["folder", "pipe", "dangling link"])
def test_what_has_the_name_of_a_checkpoints_file_and_is_none_is_refused(
    tmp_path: Path, name: str, kind: str
) -> None:
    """To pass it over would quietly make another checkpoint, with another identity, of the rest."""
    touch(tmp_path, "config.json", "inference_config.json", "model.safetensors")
    (tmp_path / name).unlink(missing_ok=True)
    if kind == "folder":
        (tmp_path / name).mkdir()
    elif kind == "pipe":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).symlink_to("nowhere")
    assert refusal(tmp_path) == f"{tmp_path / name}: is not a regular file"


def test_either_config_will_do(tmp_path: Path) -> None:
    touch(tmp_path, "inference_config.json", "model.safetensors")
    found = find_files(tmp_path)
    assert found.config is None
    assert [path.name for path in found.sources] == ["inference_config.json", "model.safetensors"]


def test_an_index_names_the_shards_alone(tmp_path: Path) -> None:
    touch(tmp_path, "config.json", "model-1.safetensors", "drafter.safetensors")
    index(tmp_path, {"a": "drafter.safetensors", "b": "drafter.safetensors"})
    assert [path.name for path in find_files(tmp_path).shards] == ["drafter.safetensors"]


def test_a_shard_that_the_index_names_must_be_there(tmp_path: Path) -> None:
    touch(tmp_path, "config.json", "model-1.safetensors")
    index(tmp_path, {"a": "model-2.safetensors"})
    message = refusal(tmp_path)
    assert "model.safetensors.index.json: weight_map" in message
    assert "model-2.safetensors" in message


@pytest.mark.parametrize(
    "shard",
    ["../model.safetensors", "/etc/model.safetensors", "a\\b.safetensors", "passwd", 7, None,
     "x\n.safetensors", "sub/model.safetensors"],
)  # fmt: skip
def test_an_index_cannot_lead_out_of_the_folder(tmp_path: Path, shard: object) -> None:
    touch(tmp_path, "config.json", "model.safetensors")
    index(tmp_path, {"a": shard})
    assert "plain file name" in refusal(tmp_path)


@pytest.mark.parametrize("weight_map", [None, {}, [], "model.safetensors"])
def test_an_index_without_a_map_is_refused(tmp_path: Path, weight_map: object) -> None:
    touch(tmp_path, "config.json", "model.safetensors")
    index(tmp_path, weight_map)
    assert "weight_map" in refusal(tmp_path)


def test_two_indexes_are_one_too_many(tmp_path: Path) -> None:
    touch(tmp_path, "config.json", "model.safetensors")
    index(tmp_path, {"a": "model.safetensors"}, "a.safetensors.index.json")
    index(tmp_path, {"a": "model.safetensors"}, "b.safetensors.index.json")
    assert "a.safetensors.index.json, b.safetensors.index.json" in refusal(tmp_path)


def test_a_folder_without_config_or_shards_says_so(tmp_path: Path) -> None:
    assert "config.json" in refusal(tmp_path)
    touch(tmp_path, "config.json", "other.safetensors")
    assert "model*.safetensors" in refusal(tmp_path)
    assert "no readable folder" in refusal(tmp_path / "absent")
