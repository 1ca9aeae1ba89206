"""`dsparkctl checkpoint inspect`."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from dsparkctl.cli import checkpoint

Cli = Callable[..., tuple[int, str, str]]

GOLDEN = Path(__file__).parents[2] / "golden" / "drafter" / "a"


@pytest.fixture
def renamed(tmp_path: Path) -> Path:
    """The golden checkpoint with one tensor under a name nobody knows."""
    for name in ("config.json", "inference_config.json"):
        (tmp_path / name).write_bytes((GOLDEN / name).read_bytes())
    data = (GOLDEN / "model.safetensors").read_bytes()
    size = struct.unpack_from("<Q", data)[0]
    header = data[8 : 8 + size].replace(b'"mtp.0.main_norm.weight"', b'"mtp.0.main_norm.wei9ht"')
    (tmp_path / "model.safetensors").write_bytes(data[:8] + header + data[8 + size :])
    return tmp_path


def test_a_whole_checkpoint_is_listed_with_formats_and_sizes(cli: Cli) -> None:
    code, out, err = cli("checkpoint", "inspect", GOLDEN)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["tensor", "format", "dtype", "shape", "count", "size"]
    assert ["embed.weight", "plain", "BF16", "160x64", "1", "20.0", "KiB"] in [
        line.split() for line in lines
    ]
    experts = [line.split() for line in lines if "experts.*.w1.weight" in line]
    assert [line[4] for line in experts] == ["8", "8", "8"]


def test_json_lists_every_tensor_on_one_line(cli: Cli) -> None:
    code, out, _ = cli("checkpoint", "inspect", GOLDEN, "--json")
    found = json.loads(out)
    assert (code, out.count("\n"), found["ok"]) == (0, 1, True)
    assert found["n_bytes"] == sum(tensor["n_bytes"] for tensor in found["tensors"])
    assert found["missing"] == found["unknown"] == found["wrong"] == []
    assert found["tensors"][0] == {
        "name": "embed.weight",
        "format": "plain",
        "dtype": "BF16",
        "shape": [160, 64],
        "n_bytes": 160 * 64 * 2,
        "file": "model.safetensors",
    }


def test_what_is_missing_or_unknown_is_named_and_fails(cli: Cli, renamed: Path) -> None:
    code, _, err = cli("checkpoint", "inspect", renamed)
    assert code == 1
    assert "mtp.0.main_norm.weight: is missing" in err
    assert "mtp.0.main_norm.wei9ht: is no tensor of this model" in err
    code, out, _ = cli("checkpoint", "inspect", renamed, "--json")
    found = json.loads(out)
    assert (code, found["ok"]) == (1, False)
    assert found["missing"] == ["mtp.0.main_norm.weight"]
    assert found["unknown"] == ["mtp.0.main_norm.wei9ht"]


def test_a_folder_without_a_checkpoint_is_one_line(cli: Cli, tmp_path: Path) -> None:
    code, out, err = cli("checkpoint", "inspect", tmp_path)
    assert (code, out, err.count("\n")) == (1, "", 1)


@pytest.fixture
def too_few_experts(tmp_path: Path) -> Path:
    """The golden checkpoint under a config that asks for 64 experts instead of 8."""
    for name in ("config.json", "inference_config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((GOLDEN / name).read_bytes())
    for path in (tmp_path / "config.json", tmp_path / "inference_config.json"):
        text = path.read_text()
        path.write_text(text.replace('_experts": 8', '_experts": 64'))
    return tmp_path


def test_many_problems_of_a_kind_are_cut_and_counted(cli: Cli, too_few_experts: Path) -> None:
    code, _, err = cli("checkpoint", "inspect", too_few_experts)
    code_json, out, _ = cli("checkpoint", "inspect", too_few_experts, "--json")
    n_missing = json.loads(out)["n_missing"]
    assert (code, code_json) == (1, 1)
    assert n_missing >= 3 * 3 * 56
    assert err.count(": is missing\n") == 20
    assert f"... and {n_missing - 20} more missing\n" in err


def test_json_is_cut_too_and_says_how_many_there_are(
    cli: Cli, too_few_experts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "MAX_JSON", 5)
    found = json.loads(cli("checkpoint", "inspect", too_few_experts, "--json")[1])
    assert len(found["missing"]) == 5
    assert found["n_missing"] > 5
    assert found["n_wrong"] > len(found["wrong"]) == 5
    assert (found["n_unknown"], found["unknown"]) == (0, [])
