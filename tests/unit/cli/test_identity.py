"""`dsparkctl identity` (§6.7, R41)."""

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dsparkctl.contract.receipt import parse_receipt

Cli = Callable[..., tuple[int, str, str]]

GOLDEN = Path(__file__).parents[2] / "golden" / "drafter" / "a"
SOURCES = ("config.json", "inference_config.json", "model.safetensors")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def identity_of(paths: list[Path]) -> str:
    """§6.7 once more, in three lines."""
    lines = sorted(f"{path.name} {sha256(path)}\n" for path in paths)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for name in SOURCES:
        (folder / name).write_bytes((GOLDEN / name).read_bytes())
    return folder


@pytest.fixture
def receipt(cli: Cli, checkpoint: Path, tmp_path: Path) -> Path:
    path = tmp_path / "DSPARK_COPY_DONE"
    assert cli("identity", "write", checkpoint, "--out", path)[0] == 0
    return path


def test_receipt_prints_both_identities_and_the_files(
    cli: Cli, receipt: Path, checkpoint: Path, tmp_path: Path
) -> None:
    markov = tmp_path / "markov_top_tokens.json"
    markov.write_text("[1, 2]")
    code, out, err = cli("identity", "receipt", receipt, "--markov", markov, "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert json.loads(out) == {
        "drafter_identity": identity_of([checkpoint / name for name in SOURCES]),
        "markov_identity": sha256(markov),
        "files": [{"name": name, "sha256": sha256(checkpoint / name)} for name in SOURCES],
    }


def test_receipt_without_a_markov_file_says_zeros(cli: Cli, receipt: Path) -> None:
    """§6.2"""
    code, out, _ = cli("identity", "receipt", receipt)
    assert code == 0
    assert f"markov_identity   {'0' * 64}\n" in out


def test_a_receipt_without_extracted_files_is_good_enough_for_a_digest(
    cli: Cli, tmp_path: Path
) -> None:
    path = tmp_path / "r"
    path.write_text(json.dumps({"files": [{"name": "a", "sha256": "A" * 64}]}))
    line = hashlib.sha256(f"a {'a' * 64}\n".encode()).hexdigest()
    code, out, _ = cli("identity", "receipt", path, "--json")
    assert (code, json.loads(out)["drafter_identity"]) == (0, line)
    code, _, err = cli("identity", "verify", path, "--root", tmp_path)
    assert code == 10
    assert "extracted_files is empty" in err


def test_the_expected_digest_is_compared_in_any_case(cli: Cli, receipt: Path) -> None:
    digest = json.loads(cli("identity", "receipt", receipt, "--json")[1])["drafter_identity"]
    assert cli("identity", "receipt", receipt, "--expect", digest.upper())[0] == 0
    code, out, err = cli("identity", "receipt", receipt, "--expect", "f" * 64)
    assert code == 10
    assert digest in out
    assert digest in err
    assert "f" * 64 in err
    assert err.count("\n") == 1


def test_wrong_input_is_one_line_and_exit_2(cli: Cli, receipt: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.write_text('{"files": [{"path": "x", "sha256": "abc"}]}')
    for args, said in [
        ((bad,), f'{bad}: files[0].sha256: expected 64 hex digits, got "abc"'),
        ((tmp_path / "none",), f"{tmp_path / 'none'}: cannot be read: No such file or directory"),
        ((receipt, "--expect", "abc"), '--expect: expected 64 hex digits, got "abc"'),
    ]:
        assert cli("identity", "receipt", *args) == (2, "", said + "\n")


def test_verify_is_content_with_the_files_it_was_made_of(
    cli: Cli, receipt: Path, checkpoint: Path
) -> None:
    code, out, err = cli("identity", "verify", receipt, "--root", checkpoint)
    assert (code, out, err) == (0, "3 of 3 files match the receipt\n", "")


def test_verify_names_each_missing_truncated_and_differing_file(
    cli: Cli, receipt: Path, checkpoint: Path
) -> None:
    """§6.7"""
    (checkpoint / "config.json").unlink()
    os.truncate(checkpoint / "inference_config.json", 5)
    with (checkpoint / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x55")
    code, out, err = cli("identity", "verify", receipt, "--root", checkpoint)
    assert (code, out) == (10, "0 of 3 files match the receipt\n")
    assert "config.json: missing: no such file" in err
    assert "inference_config.json: size differs: truncated: 5 bytes" in err
    assert "model.safetensors: content differs: sha256 is" in err
    code, out, _ = cli("identity", "verify", receipt, "--root", checkpoint, "--json")
    assert (code, out.count("\n"), json.loads(out)["ok"]) == (10, 1, False)
    states = {file["name"]: file["state"] for file in json.loads(out)["files"]}
    assert states["config.json"] == "missing"


def test_verify_wants_a_folder(cli: Cli, receipt: Path, tmp_path: Path) -> None:
    code, _, err = cli("identity", "verify", receipt, "--root", tmp_path / "none")
    assert (code, err.count("\n")) == (2, 1)


def test_a_written_receipt_is_one_a_worker_can_load_by(receipt: Path, checkpoint: Path) -> None:
    """R41: both lists, each file with its digest and its size."""
    made = parse_receipt(receipt.read_bytes())
    assert made.files == made.extracted_files
    assert {file.name: (file.sha256, file.n_bytes) for file in made.files} == {
        name: (sha256(checkpoint / name), (checkpoint / name).stat().st_size) for name in SOURCES
    }


def test_a_file_that_is_not_the_checkpoints_changes_nothing(
    cli: Cli, receipt: Path, checkpoint: Path
) -> None:
    before = receipt.read_bytes()
    (checkpoint / "README.md").write_text("hello")
    assert cli("identity", "write", checkpoint, "--out", receipt, "--force")[0] == 0
    assert receipt.read_bytes() == before


def test_write_replaces_a_receipt_only_when_told_to(
    cli: Cli, receipt: Path, checkpoint: Path
) -> None:
    receipt.write_text("somebody's own")
    code, _, err = cli("identity", "write", checkpoint, "--out", receipt)
    assert (code, err) == (2, f"{receipt}: exists; --force replaces it\n")
    assert receipt.read_text() == "somebody's own"


def test_write_never_replaces_a_file_of_the_checkpoint(cli: Cli, checkpoint: Path) -> None:
    code, _, err = cli("identity", "write", checkpoint, "--out", checkpoint / "config.json")
    assert code == 2
    assert "belongs to the checkpoint" in err
    assert (checkpoint / "config.json").read_bytes() == (GOLDEN / "config.json").read_bytes()


def test_write_of_no_checkpoint_fails_in_one_line(cli: Cli, tmp_path: Path) -> None:
    code, out, err = cli("identity", "write", tmp_path, "--out", tmp_path / "r")
    assert (code, out, err.count("\n")) == (1, "", 1)


@contextmanager
def almost_full_disk() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_no_half_receipt(cli: Cli, checkpoint: Path, tmp_path: Path) -> None:
    """Field report 25."""
    out = tmp_path / "out"
    out.mkdir()
    with almost_full_disk():
        code, stdout, err = cli("identity", "write", checkpoint, "--out", out / "r")
    assert (code, stdout) == (1, "")
    assert err.startswith(f"{out / 'r'}: cannot be written: ")
    assert list(out.iterdir()) == []


def test_an_interrupt_ends_with_130_and_no_traceback(receipt: Path, checkpoint: Path) -> None:
    """A real process, stopped while it hashes a file that takes long: a sparse one."""
    big = checkpoint / "model-00002.safetensors"
    with big.open("wb") as file:
        file.truncate(1 << 40)
    entry = {"path": big.name, "sha256": "0" * 64}
    receipt.write_text(json.dumps({"files": [entry], "extracted_files": [entry]}))
    args = ["identity", "verify", str(receipt), "--root", str(checkpoint)]
    command = [sys.executable, "-c", STARTED, *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"hashing\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, b"", b"")


STARTED = """
from contextlib import contextmanager
from dsparkctl.cli import app, render

@contextmanager
def progress(what, n_total_bytes):
    said = []
    def tick(n_bytes):
        if not said:
            said.append(print("hashing", flush=True))
    yield tick

render.progress = progress
app.main()
"""
