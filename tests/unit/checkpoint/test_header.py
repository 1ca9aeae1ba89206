"""A shard's header against its file: everything that is not whole is refused, naming the tensor."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.checkpoint.header import ITEM_BYTES, TensorInfo, read_header
from tests.unit.checkpoint.shards import entry, write, write_raw

GOOD = {"a": entry("F32", [2, 3], 0, 24), "b": entry("BF16", [], 24, 26)}


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_header(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert len(message) < 600
    return message.removeprefix(f"{path}: ")


def test_a_whole_file_gives_every_tensor_with_its_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "m", {"__metadata__": {"format": "pt"}, **GOOD}, 26)
    found = read_header(path)
    size = path.stat().st_size
    assert found == {
        "a": TensorInfo("F32", (2, 3), size - 26, size - 2),
        "b": TensorInfo("BF16", (), size - 2, size),
    }
    assert found["a"].n_bytes == 24


@pytest.mark.parametrize("dtype", ITEM_BYTES)
def test_every_dtype_of_the_format_is_known(tmp_path: Path, dtype: str) -> None:
    n_bytes = 3 * ITEM_BYTES[dtype]
    path = write(tmp_path / "m", {"a": entry(dtype, [3], 0, n_bytes)}, n_bytes)
    assert read_header(path)["a"].dtype == dtype


def test_tensors_come_in_the_order_of_their_data(tmp_path: Path) -> None:
    header = {"z": entry("U8", [1], 1, 2), "a": entry("U8", [1], 0, 1)}
    assert list(read_header(write(tmp_path / "m", header, 2))) == ["a", "z"]


def test_an_empty_tensor_takes_no_bytes(tmp_path: Path) -> None:
    header = {"a": entry("U8", [0, 5], 0, 0), "b": entry("U8", [1], 0, 1)}
    assert len(read_header(write(tmp_path / "m", header, 1))) == 2


@pytest.mark.parametrize("n_missing", [1, 2, 3, 25])
def test_a_truncated_file_names_the_tensor_that_is_cut(tmp_path: Path, n_missing: int) -> None:
    message = refusal(write(tmp_path / "m", GOOD, 26 - n_missing))
    assert "truncated" in message
    assert message.startswith("b: " if n_missing <= 2 else "a: ")


def test_bytes_behind_the_last_tensor_are_refused(tmp_path: Path) -> None:
    assert "bytes lie behind the last tensor: 7" in refusal(write(tmp_path / "m", GOOD, 33))


@pytest.mark.parametrize(
    ("header", "named"),
    [
        ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}, "b: .*overlaps.* a"),
        ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [1], 8, 12)}, ""),
        ({"a": entry("F32", [2], 4, 12)}, "a: bytes before its data lie unused: 4"),
        ({"a": entry("F32", [2], 0, 12)}, r"a: F32 \[2\] needs 8 bytes"),
        ({"a": entry("F99", [2], 0, 12)}, "a: dtype 'F99'"),
        ({"a": entry("F32", [-3], 0, 12)}, r"a: shape \[-3\]"),
        ({"a": entry("F32", [True, 3], 0, 12)}, "a: shape"),
        ({"a": entry("F32", [3], 0, 12) | {"shape": [1.5, 2]}}, "a: shape"),
        ({"a": entry("F32", [3], 12, 0)}, "a: data_offsets"),
        ({"a": {"dtype": "F32", "shape": [3]}}, "a: must state"),
        ({"a": entry("F32", [3], 0, 12) | {"more": 1}}, "a: must state"),
        ({"a": [1, 2]}, "a: must state"),
        ({"a": entry("F32", [1 << 60], 0, 12)}, "a: shape"),
        ({"a": entry("U8", [1] * 17, 0, 1)}, "a: shape"),
        ({"__metadata__": {"a": 1}}, "__metadata__: "),
        ({"line\nbreak": entry("F32", [3], 0, 12)}, "not printable"),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(
    tmp_path: Path, header: dict[str, Any], named: str
) -> None:
    path = write(tmp_path / "m", header, 12)
    if not named:  # the one sound header of the table, so that the others fail for their own reason
        assert len(read_header(path)) == 2
        return
    with pytest.raises(CheckpointError, match=named):
        read_header(path)
    refusal(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "too short"),
        (b"\x00" * 7, "too short"),
        (b"\xff" * 8, "claims"),
        ((101_000_000).to_bytes(8, "little") + b"{}", "claims"),
        ((3).to_bytes(8, "little") + b"{}", "claims"),
        ((2).to_bytes(8, "little") + b"[]", "not a JSON object"),
        ((2).to_bytes(8, "little") + b"{]", "not valid JSON"),
        ((2).to_bytes(8, "little") + b"\xff\xfe", "not valid JSON"),
    ],
)
def test_what_is_no_safetensors_file_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "m"
    path.write_bytes(content)
    assert said in refusal(path)


def test_a_header_that_names_a_tensor_twice_is_refused(tmp_path: Path) -> None:
    one = json.dumps(entry("U8", [1], 0, 1))
    header = f'{{"a": {one}, "a": {one}}}'.encode()
    assert refusal(write_raw(tmp_path / "m", header, b"\0")).startswith("a: ")


def test_deep_nesting_is_refused_not_a_crash(tmp_path: Path) -> None:
    assert "not valid JSON" in refusal(write_raw(tmp_path / "m", b'{"a":' + b"[" * 200_000, b""))


def test_a_file_that_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(tmp_path / "absent")


@settings(max_examples=200)
@given(st.binary(max_size=64))
def test_garbage_never_raises_anything_else(tmp_path_factory: Any, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage"
    path.write_bytes(len(content).to_bytes(8, "little") + content)
    with pytest.raises(CheckpointError) if content != b"{}" else nullcontext():
        read_header(path)
