"""A safetensors file written tensor by tensor, or not at all."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from dspark_worker.model.shard_writer import Planned, write_shard
from dsparkctl.checkpoint.header import read_header
from dsparkctl.config.errors import WriteError

TENSORS = {
    "a": torch.arange(6.0).view(2, 3),
    "b": torch.tensor([1.5], dtype=torch.bfloat16),
    "c": torch.zeros(0, 4, dtype=torch.float16),
    "d": torch.tensor(2.5),
    "e": torch.arange(12.0).view(3, 4).T,
}
WORDS = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
PLAN = [Planned(name, WORDS[t.dtype], tuple(t.shape)) for name, t in TENSORS.items()]


def test_the_library_and_our_own_header_rules_read_it(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_shard(path, PLAN, iter(TENSORS.values()))
    assert read_header(path).keys() == TENSORS.keys()
    found = load_file(path)
    assert all(torch.equal(found[name], tensor) for name, tensor in TENSORS.items())
    assert path.stat().st_mode & 0o777 == 0o644
    header = int.from_bytes(path.read_bytes()[:8], "little")
    assert (8 + header) % 64 == 0


def test_whatever_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_text("before")

    def failing() -> Iterator[Tensor]:
        yield TENSORS["a"]
        raise OSError(28, "No space left on device")

    with pytest.raises(WriteError, match=r"x\.safetensors: cannot be written: No space left"):
        write_shard(path, PLAN, failing(), replace=True)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
