"""`worker replay`: the comparison as text and as one JSON line, and exit 1 when it breaks."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from dspark_worker.__main__ import main

GOLDEN = Path(__file__).parents[2] / "golden" / "drafter" / "a"


def test_a_good_case_is_0_and_its_outputs_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.safetensors"
    assert main(["replay", str(GOLDEN), "--mode", "f32", "--out", str(out), "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    said = json.loads(line)
    assert (said["mode"], said["compared"], said["broken"]) == ("f32", True, [])
    assert said["keys"] == len(load_file(out))
    expected = load_file(GOLDEN / "expected.safetensors")
    assert {k for k in expected if k.startswith("f32.")} == set(load_file(out))


def test_a_broken_tolerance_is_1_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = tmp_path / "case"
    shutil.copytree(GOLDEN, case)
    expected = load_file(case / "expected.safetensors")
    key = next(k for k in sorted(expected) if k.startswith("f32.") and k.endswith("head_hidden"))
    expected[key] = expected[key] + 1
    save_file(expected, case / "expected.safetensors")
    assert main(["replay", str(case), "--mode", "f32"]) == 1
    out = capsys.readouterr().out
    assert "BROKEN" in out
    assert key in out


def test_a_case_without_expectations_is_run_and_says_that_it_compared_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = tmp_path / "case"
    shutil.copytree(GOLDEN, case)
    (case / "expected.safetensors").unlink()
    assert main(["replay", str(case), "--mode", "f32"]) == 0
    assert "no expected.safetensors" in capsys.readouterr().out


@pytest.mark.parametrize("spoilt", ["scenario.json", "inputs.safetensors"])
@pytest.mark.parametrize("content", [None, b"", b"\xff{}"])
def test_a_case_that_cannot_be_read_is_one_line_naming_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoilt: str, content: bytes | None
) -> None:
    case = tmp_path / "case"
    shutil.copytree(GOLDEN, case)
    (case / spoilt).unlink()
    if content is not None:
        (case / spoilt).write_bytes(content)
    assert main(["replay", str(case), "--mode", "f32"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert str(case / spoilt) in line


def test_an_output_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "no" / "such" / "folder.safetensors"
    assert main(["replay", str(GOLDEN), "--mode", "f32", "--out", str(out)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert str(out) in line


def test_an_output_that_is_no_regular_file_is_refused_before_the_replay_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    no_case = tmp_path / "nothing"
    assert main(["replay", str(no_case), "--mode", "f32", "--out", str(fifo)]) == 1
    assert capsys.readouterr().err == f"{fifo}: not a regular file\n"
    assert fifo.is_fifo()
    assert list(tmp_path.iterdir()) == [fifo]


def test_a_name_that_no_file_can_have_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / ("x" * 300)
    assert main(["replay", str(GOLDEN), "--mode", "f32", "--out", str(out)]) == 1
    assert capsys.readouterr().err.endswith(": File name too long\n")


def process(end: str, stdout: int | None = None) -> subprocess.CompletedProcess[str]:
    """A replay as a process of its own, its streams redirected by the shell words `end`."""
    command = [sys.executable, "-m", "dspark_worker", "replay", str(GOLDEN), "--mode", "f32"]
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {end}', "sh", *command],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_reader_that_is_gone_is_one_line() -> None:
    read, write = os.pipe()
    os.close(read)
    done = process("", stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "stdout: cannot be written: Broken pipe\n")


def test_a_closed_stdout_changes_no_exit_code() -> None:
    done = process("<&- >&-")
    assert (done.returncode, done.stderr) == (0, "")
