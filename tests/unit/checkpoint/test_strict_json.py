"""JSON from files that others wrote."""

from pathlib import Path

import pytest

from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.checkpoint.strict_json import parse_object, read_json_object


def test_an_object_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": [1, {"b": null}]}')
    assert read_json_object(path) == {"a": [1, {"b": None}]}


def test_a_file_above_its_bound_is_never_parsed(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": 1}')
    with pytest.raises(CheckpointError, match="larger than 7 bytes"):
        read_json_object(path, max_bytes=7)
    assert read_json_object(path, max_bytes=8) == {"a": 1}


@pytest.mark.parametrize("text", ['{"a":1,"a":1}', '{"x":{"a":1,"a":1}}'])
def test_a_key_said_twice_is_named_at_any_depth(text: str) -> None:
    with pytest.raises(CheckpointError, match=r"f: a: .*twice"):
        parse_object(text.encode(), Path("f"))


def test_a_hostile_key_is_printed_on_one_short_line() -> None:
    key = "\\n" + "x" * 5000
    with pytest.raises(CheckpointError) as caught:
        parse_object(f'{{"{key}":1,"{key}":2}}'.encode(), Path("f"))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("text", [b"9" * 5000, b'{"a":' + b"9" * 5000 + b"}", b"[" * 100_000])
def test_what_the_parser_chokes_on_is_one_line(text: bytes) -> None:
    with pytest.raises(CheckpointError, match="not valid JSON"):
        parse_object(text, Path("f"))
