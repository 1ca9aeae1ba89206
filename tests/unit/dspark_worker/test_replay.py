"""Golden cases read, played and judged (spec §11)."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dspark_worker.golden import MODES, compare, load_case
from dspark_worker.replay import replay
from dsparkctl.checkpoint.errors import CheckpointError

GOLDEN = Path(__file__).parents[2] / "golden" / "drafter" / "a"


@pytest.fixture
def case(tmp_path: Path) -> Path:
    """A copy of the golden case that may be spoiled."""
    return Path(shutil.copytree(GOLDEN, tmp_path / "case", copy_function=shutil.copyfile))


@pytest.mark.parametrize("mode", MODES)
def test_the_same_keys_are_written_as_are_expected(mode: str) -> None:
    outputs = replay(GOLDEN, mode).outputs
    expected = load_file(GOLDEN / "expected.safetensors")
    mine = {key: (tensor.dtype, tensor.shape) for key, tensor in outputs.items()}
    assert mine == {
        key: (tensor.dtype, tensor.shape)
        for key, tensor in expected.items()
        if key.startswith(f"{mode}.")
    }


def test_a_case_that_expects_nothing_is_played_and_not_judged(case: Path) -> None:
    (case / "expected.safetensors").unlink()
    done = replay(case, "f32")
    assert done.deviations == ()
    assert done.outputs.keys() == replay(GOLDEN, "f32").outputs.keys()


@pytest.mark.parametrize(
    ("what", "push"),
    [("main_x", 3e-5), ("window_kv.1", 3e-5), ("head_hidden", 1e-3), ("margin", 2e-4),
     ("draft_ids", 1), ("routed_experts", 1), ("base_logits", 2e-4), ("markov_bias", 2e-4),
     ("conf_logit", 1e-3), ("confidence", 1e-3), ("head_hidden", float("nan"))],
)  # fmt: skip
def test_one_value_beyond_its_tolerance_breaks_the_case(case: Path, what: str, push: float) -> None:
    expected = load_file(case / "expected.safetensors")
    expected[f"f32.r06.{what}"].view(-1)[0] += push
    save_file(expected, case / "expected.safetensors")
    (broken,) = replay(case, "f32").broken
    assert broken.what == what.partition(".")[0]
    assert broken.key == f"f32.r06.{what}"


def test_bf16_is_judged_by_ids_and_relative_rms(case: Path) -> None:
    expected = load_file(case / "expected.safetensors")
    expected["bf16.r06.head_hidden"] *= 1.03
    expected["bf16.r07.confidence"] += 0.1
    save_file(expected, case / "expected.safetensors")
    assert [d.what for d in replay(case, "bf16").broken] == ["head_hidden (relative rms)"]


@pytest.mark.parametrize("change", ["missing", "more", "shape"])
def test_keys_and_shapes_must_be_the_same(change: str) -> None:
    outputs = {"f32.r00.main_x": torch.zeros(2, 3)}
    expected = {
        "missing": {},
        "more": outputs | {"f32.r01.main_x": torch.zeros(2, 3)},
        "shape": {"f32.r00.main_x": torch.zeros(1, 3)},
    }[change]
    (deviation,) = [d for d in compare(outputs, expected, MODES["f32"]) if d.broken]
    assert deviation.what == "keys and shapes"


def test_an_output_that_is_not_finite_is_broken_even_where_the_expected_is_not_either() -> None:
    nan = {"f32.r00.main_x": torch.full((1,), torch.nan)}
    assert compare(nan, nan, MODES["f32"])[0].broken


def test_an_unknown_mode_is_one_line() -> None:
    with pytest.raises(CheckpointError, match="f32, f32_kvq, bf16, bf16_kvq"):
        replay(GOLDEN, "f16")


@pytest.mark.parametrize(
    "spoil",
    [
        {"n_rows": "3"},
        {"anchor_pos": 1.0},
        {"need_draft": 1},
        {"first_pos": None},
    ],
)
def test_a_round_with_a_field_of_another_type_is_named(case: Path, spoil: dict[str, Any]) -> None:
    path = case / "scenario.json"
    scenario = json.loads(path.read_text())
    scenario["rounds"][3] |= spoil
    path.write_text(json.dumps(scenario))
    with pytest.raises(CheckpointError, match=r"scenario\.json: rounds\[3\]: "):
        load_case(case)


def test_a_round_that_lacks_a_field_is_named(case: Path) -> None:
    path = case / "scenario.json"
    scenario = json.loads(path.read_text())
    del scenario["rounds"][2]["max_model_len"]
    path.write_text(json.dumps(scenario))
    with pytest.raises(CheckpointError, match=r"rounds\[2\]: .*max_model_len"):
        load_case(case)


def test_rows_outside_the_inputs_are_refused(case: Path) -> None:
    path = case / "scenario.json"
    scenario = json.loads(path.read_text())
    scenario["rounds"][1]["row_offset"] = 48
    path.write_text(json.dumps(scenario))
    with pytest.raises(CheckpointError, match=r"inputs\.safetensors: rows: round 1"):
        replay(case, "f32")


@pytest.mark.parametrize("name", ["scenario.json", "inputs.safetensors", "model.safetensors"])
def test_a_case_without_one_of_its_files_is_one_line(case: Path, name: str) -> None:
    (case / name).unlink()
    with pytest.raises(CheckpointError) as caught:
        replay(case, "f32")
    assert "\n" not in str(caught.value)


def respoken(case: Path, index: int, **fields: Any) -> Path:
    """The case's scenario with fields of one round changed."""
    path = case / "scenario.json"
    scenario = json.loads(path.read_text())
    scenario["rounds"][index] |= fields
    path.write_text(json.dumps(scenario))
    return path


def test_a_case_without_rounds_is_one_line(case: Path) -> None:
    (case / "scenario.json").write_text('{"rounds": []}')
    with pytest.raises(CheckpointError, match=r"scenario\.json: rounds: must be a list of at le"):
        replay(case, "f32")


@pytest.mark.parametrize("values", [[], 5, None, "x"])
def test_a_round_that_is_no_object_is_named(case: Path, values: object) -> None:
    (case / "scenario.json").write_text(json.dumps({"rounds": [values]}))
    with pytest.raises(CheckpointError, match=r"rounds\[0\]: must be an object$"):
        load_case(case)


@pytest.mark.parametrize("key", ["f32.", "f32.main_x"])
def test_an_expected_key_without_round_or_kind_is_named(case: Path, key: str) -> None:
    save_file({key: torch.zeros(1)}, case / "expected.safetensors")
    with pytest.raises(CheckpointError, match=rf"expected\.safetensors: {key}: is no key"):
        replay(case, "f32")


def test_a_round_that_the_desk_refuses_is_named_with_its_file(case: Path) -> None:
    path = respoken(case, 2, anchor_token=-5)
    with pytest.raises(CheckpointError) as caught:
        replay(case, "f32")
    assert str(caught.value) == f"{path}: rounds[2]: the desk answered BAD_ENTRY"


def test_a_number_beyond_its_field_is_named_with_its_file(case: Path) -> None:
    path = respoken(case, 2, anchor_pos=1 << 70)
    with pytest.raises(CheckpointError) as caught:
        replay(case, "f32")
    assert str(caught.value).startswith(f"{path}: rounds[2]: a number does not fit its field")
