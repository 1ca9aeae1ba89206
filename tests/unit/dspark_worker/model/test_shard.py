"""Tensors read by offsets, never mapped: what a file does to itself meanwhile costs one line."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save, save_file

from dspark_worker.model import shard as shard_module
from dspark_worker.model.shard import open_shard
from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.checkpoint.header import ITEM_BYTES

DTYPES = shard_module._DTYPES


def test_every_dtype_that_a_header_may_name_is_read_as_itself() -> None:
    assert DTYPES.keys() == ITEM_BYTES.keys()
    assert {name: dtype.itemsize for name, dtype in DTYPES.items()} == dict(ITEM_BYTES)


@given(
    dtype=st.sampled_from([d for n, d in DTYPES.items() if n not in ("BOOL", "F8_E8M0")]),
    shape=st.lists(st.integers(0, 5), max_size=4),
    seed=st.integers(0, 1000),
)
def test_what_was_saved_is_read_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, dtype: torch.dtype, shape: list[int], seed: int
) -> None:
    """safetensors' own writer is the model."""
    path = tmp_path_factory.getbasetemp() / "bits.safetensors"
    generator = torch.Generator().manual_seed(seed)
    n_bytes = torch.zeros(shape, dtype=dtype).nbytes
    bits = torch.randint(0, 256, (n_bytes,), dtype=torch.uint8, generator=generator)
    path.write_bytes(save({"before": torch.ones(3), "x": bits.view(dtype).view(shape)}))
    with open_shard(path) as shard:
        found = shard.take("x")
    assert (found.dtype, list(found.shape)) == (dtype, shape)
    assert found.contiguous().view(-1).view(torch.uint8).equal(bits)


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 4096)


def _emptied(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize("damage", [_cut, _emptied])
def test_a_file_that_is_cut_while_it_is_read_is_one_line(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """A mapped one would end the process by SIGBUS (EXL3 specification §10)."""
    path = tmp_path / "x.safetensors"
    save_file({"w": torch.ones(1 << 16)}, path)
    with open_shard(path) as shard:
        damage(path)
        with pytest.raises(
            CheckpointError, match=re.escape(f"{path}: w: ") + r"\d+ bytes of its data went"
        ):
            shard.take("w")


def test_a_file_that_is_overwritten_later_changes_no_weight(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"w": torch.ones(1 << 16)}, path)
    with open_shard(path) as shard:
        weight = shard.take("w")
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)
    os.truncate(path, 0)
    assert weight.eq(1).all()


def test_a_read_that_brings_a_part_goes_on_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel hands out at most 2 GiB a call."""
    path = tmp_path / "x.safetensors"
    weight = torch.arange(1000.0)
    save_file({"w": weight}, path)
    read = os.preadv

    def in_parts(descriptor: int, buffers: list[memoryview], at: int) -> int:
        return read(descriptor, [buffers[0][:7]], at)

    monkeypatch.setattr(os, "preadv", in_parts)
    with open_shard(path) as shard:
        assert shard.take("w").equal(weight)


def test_a_disk_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"w": torch.ones(4)}, path)

    def fails(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", fails)
    with (
        open_shard(path) as shard,
        pytest.raises(CheckpointError, match=r"w: cannot be read \(Input/output error\)"),
    ):
        shard.take("w")


def test_a_folder_or_nothing_in_a_files_place_is_one_line(tmp_path: Path) -> None:
    for path, words in ((tmp_path, "is not a regular file"), (tmp_path / "x", "cannot be read")):
        with pytest.raises(CheckpointError, match=words), open_shard(path):
            pass
