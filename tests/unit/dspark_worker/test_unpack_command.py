"""`python -m dspark_worker dequantize|convert`: files, exit codes, one line for what is wrong."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from dspark_worker.__main__ import main
from dspark_worker.model.shard import Shard
from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.exits import Exit

GOLDEN = Path(__file__).parents[2] / "golden" / "exl3" / "mul1_k5_256x384.safetensors"
EXL3 = Path(__file__).parents[3] / "dsparkctl" / "demo" / "checkpoint-exl3"


def test_a_layer_is_written_as_the_specification_orients_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.safetensors"
    assert main(["dequantize", str(GOLDEN), "layer", "--out", str(out)]) == Exit.OK
    known, found = load_file(GOLDEN), load_file(out)
    assert found.keys() == {"weight"}
    y = known["expect.x_f32"] @ found["weight"]
    expected = known["expect.y_exact_f32"]
    assert float((y - expected).abs().max() / expected.abs().max()) <= 2e-6
    assert capsys.readouterr() == ("", f"{out}: weight F32 256x384\n")


def test_the_inner_matrix_is_the_kernels_bit_for_bit(tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    assert main(["dequantize", str(GOLDEN), "layer", "--inner", "--out", str(out)]) == Exit.OK
    found = load_file(out)
    assert found.keys() == {"inner"}
    stated = load_file(GOLDEN)["expect.w_inner_f16"]
    assert torch.equal(found["inner"].view(torch.int16), stated.view(torch.int16))


@pytest.mark.parametrize(
    ("file", "key", "out", "words"),
    [
        (GOLDEN, "other", "out", f"{GOLDEN}: other.trellis: is missing"),
        (Path("/nowhere/x"), "layer", "out", "/nowhere/x: cannot be read"),
        (GOLDEN, "layer", "no/such/folder/out", "cannot be written"),
        (GOLDEN, "layer", ".", "not a regular file"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_leaves_no_file(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    file: Path,
    key: str,
    out: str,
    words: str,
) -> None:
    code = main(["dequantize", str(file), key, "--out", str(tmp_path / out)])
    said = capsys.readouterr()
    assert (code, said.out, said.err.count("\n")) == (Exit.FAILED, "", 1)
    assert words in said.err
    assert not list(tmp_path.iterdir())


def test_a_file_that_exists_is_replaced_only_when_told_to_its_own_input_included(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source.safetensors"
    source.write_bytes(GOLDEN.read_bytes())
    asked = ["dequantize", str(source), "layer", "--out", str(source)]
    assert main(asked) == Exit.FAILED
    assert capsys.readouterr().err == f"{source}: exists already; --force replaces it\n"
    assert source.read_bytes() == GOLDEN.read_bytes()
    assert main([*asked, "--force"]) == Exit.OK
    assert load_file(source).keys() == {"weight"}


@pytest.mark.parametrize(("to", "dtype"), [("bf16", torch.bfloat16), ("f32", torch.float32)])
def test_a_dense_copy_drafts_without_exl3(tmp_path: Path, to: str, dtype: torch.dtype) -> None:
    out = tmp_path / "dense"
    assert main(["convert", str(EXL3), str(out), "--to", to]) == Exit.OK
    assert {path.name for path in out.iterdir()} == {"config.json", "model.safetensors"}
    assert "quantization_config" not in (out / "config.json").read_text()
    found = load_file(out / "model.safetensors")
    assert found["head.weight"].shape == (256, 128)
    assert found["head.weight"].dtype == dtype


def test_a_copy_into_a_folder_that_holds_something_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x").write_text("")
    assert main(["convert", str(EXL3), str(tmp_path), "--to", "f32"]) == Exit.FAILED
    assert (
        capsys.readouterr().err
        == f"{tmp_path}: is not empty; a copy goes into a folder of its own\n"
    )


def test_a_copy_into_its_own_source_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "checkpoint"
    shutil.copytree(EXL3, source)
    names = {path.name for path in source.iterdir()}
    assert main(["convert", str(source), str(source / "dense"), "--to", "f32"]) == Exit.FAILED
    assert capsys.readouterr().err.startswith(f"{source / 'dense'}: lies in the checkpoint")
    assert {path.name for path in source.iterdir()} == names


@pytest.mark.parametrize("is_there", [True, False])
def test_a_copy_that_fails_leaves_everything_as_it_was(
    is_there: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "dense"
    if is_there:
        out.mkdir()
    n_taken, take = 0, Shard.take

    def fails(self: Shard, name: str) -> Tensor:
        nonlocal n_taken
        n_taken += 1
        if n_taken == 9:
            raise CheckpointError("the disk went away")
        return take(self, name)

    monkeypatch.setattr(Shard, "take", fails)
    assert main(["convert", str(EXL3), str(out), "--to", "f32"]) == Exit.FAILED
    assert capsys.readouterr().err == "the disk went away\n"
    assert list(tmp_path.iterdir()) == ([out] if is_there else [])
    assert not is_there or list(out.iterdir()) == []
