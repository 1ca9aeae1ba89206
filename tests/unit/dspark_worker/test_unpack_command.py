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
PLAIN = Path(__file__).parents[3] / "dsparkctl" / "demo" / "checkpoint" / "model.safetensors"
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
        (GOLDEN, "other", "out", "holds no EXL3 layer other: of that name there is nothing"),
        (PLAIN, "mtp.0.attn.wkv", "out", "of that name there is only scale, weight"),
        (Path("/nowhere/x"), "layer", "out", "/nowhere/x: cannot be read"),
        (GOLDEN, "layer", "no/such/folder/out", "cannot be written"),
        (GOLDEN, "layer", ".", "not a regular file"),
        (Path("/dev/null"), "layer", "out", "/dev/null: is not a regular file"),
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


def test_a_file_that_exists_is_replaced_only_when_told_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.safetensors"
    out.write_text("something")
    asked = ["dequantize", str(GOLDEN), "layer", "--out", str(out)]
    assert main(asked) == Exit.USAGE
    assert capsys.readouterr().err == f"{out}: exists already; --force replaces it\n"
    assert out.read_text() == "something"
    assert main([*asked, "--force"]) == Exit.OK
    assert load_file(out).keys() == {"weight"}


@pytest.mark.parametrize(
    "name", ["model-exl3-mtp.safetensors", "model-exl3-head.safetensors", "link"]
)
def test_no_force_replaces_the_input_or_another_shard_of_a_checkpoint(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found by a newcomer: the shard was gone, and the command had said 0."""
    source = tmp_path / "checkpoint"
    shutil.copytree(EXL3, source)
    shard = source / "model-exl3-mtp.safetensors"
    (tmp_path / "link").symlink_to(shard)
    out = tmp_path / "link" if name == "link" else source / name
    held = out.read_bytes()
    asked = ["dequantize", str(shard), "mtp.0.attn.wkv", "--out", str(out), "--force"]
    assert main(asked) == Exit.USAGE
    assert capsys.readouterr().err == f"{out}: belongs to a checkpoint; choose another --out\n"
    assert out.read_bytes() == held


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
    assert main(["convert", str(EXL3), str(tmp_path), "--to", "f32"]) == Exit.USAGE
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
    assert main(["convert", str(source), str(source / "dense"), "--to", "f32"]) == Exit.USAGE
    assert capsys.readouterr().err.startswith(f"{source / 'dense'}: lies in the checkpoint")
    assert {path.name for path in source.iterdir()} == names


def test_a_copy_of_files_that_the_receipt_beside_them_disowns_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """§6.7: a new receipt of the copy would bless the damage."""
    source = tmp_path / "checkpoint"
    shutil.copytree(EXL3, source)
    with (source / "model-exl3-head.safetensors").open("r+b") as file:
        file.seek(5000)
        file.write(b"x")
    assert main(["convert", str(source), str(tmp_path / "out"), "--to", "f32"]) == Exit.MISMATCH
    assert "model-exl3-head.safetensors: sha256 is " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_layers_name_may_be_given_as_its_trellis(tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    assert main(["dequantize", str(GOLDEN), "layer.trellis", "--out", str(out)]) == Exit.OK


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
