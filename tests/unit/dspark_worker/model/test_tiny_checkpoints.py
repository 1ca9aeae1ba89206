"""`examples/make_tiny_checkpoint.py` and the demo's embedded checkpoint that it wrote."""

import subprocess
import sys
from pathlib import Path

import pytest

from dsparkctl.checkpoint.files import find_files
from dsparkctl.checkpoint.inspection import Format, inspect
from dsparkctl.checkpoint.model_config import read_model_config
from tests.unit.dspark_worker.model import tiny

ROOT = Path(__file__).parents[4]
SCRIPT = ROOT / "examples" / "make_tiny_checkpoint.py"
DEMO = ROOT / "dsparkctl" / "demo" / "checkpoint"


def run(*args: str) -> None:
    subprocess.run([sys.executable, str(SCRIPT), *args], check=True)


@pytest.mark.parametrize(
    ("form", "formats"),
    [
        ("bf16", {Format.PLAIN, Format.IGNORED}),
        ("release", {Format.PLAIN, Format.IGNORED, Format.FP8, Format.FP4, Format.SCALE}),
    ],
)
def test_the_script_writes_a_checkpoint_in_order(
    tmp_path: Path, form: str, formats: set[Format]
) -> None:
    run("--out", str(tmp_path), "--format", form, "--layers", "2", "--window", "6")
    files = find_files(tmp_path)
    config = read_model_config(files)
    assert (config.n_layers, config.window) == (2, 6)
    found = inspect(files, config)
    assert found.ok
    assert {row.format for row in found.rows} == formats


def test_the_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        tiny.write(tmp_path / name, release=True, seed=9)
    tiny.write(tmp_path / "three", release=True, seed=10)
    one, two, three = (
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two", "three")
    )
    assert one == two != three


def test_the_demos_checkpoint_is_small_and_of_the_release_format() -> None:
    files = find_files(DEMO)
    assert sum(path.stat().st_size for path in DEMO.iterdir()) < 4_000_000
    rows = inspect(files, read_model_config(files)).rows
    assert {Format.FP8, Format.FP4} <= {row.format for row in rows}
    drafter = tiny.load(DEMO, kv_quant="auto")
    assert drafter.kv_quant == "v4_record_64"
