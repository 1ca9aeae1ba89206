"""`dsparkctl checkpoint inspect`."""

import json
import os
import struct
import sys
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


EXL3 = Path(__file__).parents[3] / "dsparkctl" / "demo" / "checkpoint-exl3"


def test_exl3_layers_are_listed_with_k_codebook_and_bits(cli: Cli) -> None:
    code, out, err = cli("checkpoint", "inspect", EXL3)
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert ["mtp.0.main_proj", "5", "mul1", "384x128", "1", "5.167"] in lines
    assert ["mtp.1.ffn.experts.*.w2", "4", "mul1", "128x128", "8", "4.252"] in lines
    assert ["head", "6", "mul1", "128x256", "1", "6.188"] in lines
    (total,) = (line for line in out.splitlines() if "EXL3 layers" in line)
    assert total == "66 EXL3 layers, 4.669 bits per weight with their scales"


def test_exl3_layers_are_in_the_json_and_make_the_sum(cli: Cli) -> None:
    code, out, _ = cli("checkpoint", "inspect", EXL3, "--json")
    found = json.loads(out)["exl3"]
    assert code == 0
    head = found["layers"][0]
    assert head == {
        "name": "head",
        "K": 6,
        "codebook": "mul1",
        "in": 128,
        "out": 256,
        "stacked": None,
        "bits_per_weight": 6.1885,
    }
    sizes = [(layer["in"] * layer["out"], layer["bits_per_weight"]) for layer in found["layers"]]
    mean = sum(n * bits for n, bits in sizes) / sum(n for n, _ in sizes)
    assert found["bits_per_weight"] == pytest.approx(mean, abs=1e-3)


def test_without_exl3_nothing_is_said_of_it(cli: Cli) -> None:
    assert "EXL3" not in cli("checkpoint", "inspect", GOLDEN)[1]
    found = json.loads(cli("checkpoint", "inspect", GOLDEN, "--json")[1])
    assert found["exl3"] == {"layers": [], "bits_per_weight": None}


class Became(Exception):  # noqa: N818 -- what execv does instead of returning
    pass


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        (
            ("dequantize", "F", "head", "--out", "o.safetensors"),
            ("dequantize", "--out=o.safetensors", "--", "F", "head"),
        ),
        (
            ("dequantize", "--inner", "--out", "-o", "--", "-F", "mtp.0.main_proj"),
            ("dequantize", "--out=-o", "--inner", "--", "-F", "mtp.0.main_proj"),
        ),
        (
            ("dequantize", "F", "head", "--out", "o", "--force"),
            ("dequantize", "--out=o", "--force", "--", "F", "head"),
        ),
        (("convert", "DIR", "OUT", "--to", "bf16"), ("convert", "--to=bf16", "--", "DIR", "OUT")),
    ],
)
def test_what_needs_torch_becomes_the_workers_program(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], passed: tuple[str, ...]
) -> None:
    calls: list[tuple[str, list[str]]] = []

    def execv(path: str, args: list[str]) -> None:
        calls.append((path, args))
        raise Became

    monkeypatch.setattr(os, "execv", execv)
    with pytest.raises(Became):
        cli("checkpoint", *given)
    assert calls == [(sys.executable, [sys.executable, "-P", "-m", "dspark_worker", *passed])]


@pytest.mark.parametrize(
    "given", [("dequantize", "F", "KEY"), ("dequantize", "F"), ("convert", "A", "B"),
              ("convert", "A", "B", "--to", "f16")],
)  # fmt: skip
def test_what_cannot_be_meant_is_said_before_torch_is_loaded(
    cli: Cli, given: tuple[str, ...]
) -> None:
    assert cli("checkpoint", *given)[0] == 2
