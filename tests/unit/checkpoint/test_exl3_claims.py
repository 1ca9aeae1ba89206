"""Configs that speak of EXL3 layers are held against the tensors, and never believed (§8, §10)."""

import json
from pathlib import Path
from typing import Any

import pytest

from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.checkpoint.exl3 import Codebook, Exl3Layer, examine
from dsparkctl.checkpoint.exl3_claims import Claims, read_claims
from dsparkctl.checkpoint.files import CheckpointFiles
from tests.unit.checkpoint.test_exl3 import layer

PREFIX = "mtp.0.main_proj"
STORED = {f"{PREFIX}.{suffix}": tensor for suffix, tensor in layer(80, 384, 128).items()}


def layers() -> dict[str, Exl3Layer]:
    found, _ = examine(PREFIX, layer(80, 384, 128))
    assert found is not None
    return {PREFIX: found}


def claims(folder: Path, **files: Any) -> Claims:
    """`config`, `plan`, `beside`: what the three files hold."""
    names = {
        "config": "config.json",
        "plan": "exl3_moe_plan.json",
        "beside": "quantization_config.json",
    }
    for key, value in files.items():
        (folder / names[key]).write_text(value if isinstance(value, str) else json.dumps(value))
    config = folder / names["config"] if "config" in files else None
    plan = folder / names["plan"] if "plan" in files else None
    return read_claims(CheckpointFiles(folder, config, None, plan, ()))


def contradictions(found: Claims) -> list[str]:
    return [
        f"{claim.file.name}: {claim.at}: {what}"
        for claim, what in found.contradicted(STORED, layers())
    ]


DENSE_5 = {"exl3_moe": {"dense": {"drafter": {"main_proj": 5}}}}
DENSE_4 = {"exl3_moe": {"dense": {"drafter": {"main_proj": 4}}}}


@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: {"text_config": v}])
def test_the_live_config_states_main_projs_k(tmp_path: Path, wrap: Any) -> None:
    """§8: `quantization_config.exl3_moe.dense.drafter.main_proj`."""
    right = claims(tmp_path, config=wrap({"quantization_config": DENSE_5}))
    assert len(right.claims) == 1
    assert contradictions(right) == []
    lying = claims(tmp_path, config=wrap({"quantization_config": DENSE_4}))
    assert contradictions(lying) == [
        "config.json: dense.drafter.main_proj: says K 4, its trellis has K 5"
    ]


@pytest.mark.parametrize("plan", [DENSE_4, DENSE_4["exl3_moe"]])
def test_a_plan_is_read_in_either_form(tmp_path: Path, plan: dict[str, Any]) -> None:
    assert contradictions(claims(tmp_path, plan=plan)) == [
        "exl3_moe_plan.json: dense.drafter.main_proj: says K 4, its trellis has K 5"
    ]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"shape": [24, 8, 80], "n_bytes": 24 * 8 * 80 * 2, "dtype": "torch.int16"}, None),
        ({"shape": [24, 8, 64]}, "says [24, 8, 64], the file [24, 8, 80] (shape)"),
        ({"n_bytes": 1}, "says 1, the file 30720 (n_bytes)"),
        ({"dtype": "torch.float16"}, "says 'torch.float16', the file torch.int16 (dtype)"),
        ({"offset": 7}, None),
    ],
)
def test_stored_tensors_are_compared_one_by_one(
    tmp_path: Path, said: dict[str, Any], words: str | None
) -> None:
    storage = {PREFIX: {"stored_tensors": {f"{PREFIX}.trellis": said}}}
    found = contradictions(claims(tmp_path, beside={"tensor_storage": storage}))
    at = f"quantization_config.json: tensor_storage {PREFIX}.trellis: "
    assert found == ([] if words is None else [at + words])


def test_a_stacks_codebook_is_the_one_thing_that_is_taken(tmp_path: Path) -> None:
    found = claims(tmp_path, config={"quantization_config": {"codebook": "mcg"}})
    assert found.codebook is Codebook.MCG
    with pytest.raises(CheckpointError, match=r"config\.json: codebook: 'qtip' is no codebook"):
        claims(tmp_path, config={"quantization_config": {"codebook": "qtip"}})


@pytest.mark.parametrize(("marker", "is_told"), [("", True), ("mul1", False), ("mcg", False)])
def test_a_layer_that_lost_its_codebooks_marker_is_told_and_another_marker_is_believed(
    tmp_path: Path, marker: str, is_told: bool
) -> None:
    """Found by a newcomer: it was served with 3inst, and drafted half as well."""
    found, _ = examine(PREFIX, layer(80, 384, 128, marker))
    assert found is not None
    said = claims(tmp_path, config={"quantization_config": {"codebook": "mul1"}})
    told = [f"{claim.file.name}: {claim.at}: {what}"
            for claim, what in said.contradicted({}, {PREFIX: found})]  # fmt: skip
    expected = f"config.json: codebook: says mul1, {PREFIX} has no marker of it (so 3inst)"
    assert told == [expected] * is_told


def test_a_file_that_no_receipt_proves_never_names_the_codebook(tmp_path: Path) -> None:
    """§6.7: tensors hang on files of the identity alone."""
    assert claims(tmp_path, beside={"codebook": "mcg"}).codebook is None


@pytest.mark.parametrize(
    "value",
    [
        {}, {"dense": 3}, {"dense": {"drafter": [5]}}, {"dense": {"drafter": {"main_proj": "5"}}},
        {"dense": {"drafter": {"main_proj": True, "elsewhere": 3}}}, {"exl3_moe": None},
        {"tensor_storage": []}, {"tensor_storage": {"a": 1, "b": {"stored_tensors": 2}}},
        {"tensor_storage": {"a": {"stored_tensors": {"x": 1}}}},
    ],
)  # fmt: skip
def test_a_form_that_nobody_knows_claims_nothing(tmp_path: Path, value: Any) -> None:
    found = claims(tmp_path, plan=value, beside=value, config={"quantization_config": value})
    assert found == Claims(None, ())


@pytest.mark.parametrize("key", ["plan", "beside", "config"])
def test_a_file_that_is_no_json_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(CheckpointError, match="not valid JSON"):
        claims(tmp_path, **{key: "{"})
