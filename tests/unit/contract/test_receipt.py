"""Receipts (§6.7, R41)."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsparkctl.contract.receipt import (
    MAX_FILES,
    MAX_RECEIPT_BYTES,
    Receipt,
    ReceiptError,
    ReceiptFile,
    parse_digest,
    parse_receipt,
    render_receipt,
)

SHA = "0123456789abcdef" * 4


def receipt(*files: Any, **more: Any) -> bytes:
    return json.dumps({"files": list(files), "extracted_files": [], **more}).encode()


def entry(**more: Any) -> dict[str, Any]:
    return {"path": "config.json", "sha256": SHA, **more}


def complaint(data: bytes) -> str:
    with pytest.raises(ReceiptError) as caught:
        parse_receipt(data)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    return message


@pytest.mark.parametrize("key", ["path", "name", "file"])
def test_an_entry_names_its_file_by_path_name_or_file(key: str) -> None:
    """R41"""
    found = parse_receipt(receipt({key: "/data/dspark/config.json", "sha256": SHA}))
    assert [file.name for file in found.files] == ["config.json"]
    assert found.files[0].path == "/data/dspark/config.json"


@pytest.mark.parametrize("key", ["size", "bytes"])
def test_a_size_may_stand_under_either_key_or_be_absent(key: str) -> None:
    """R41"""
    found = parse_receipt(receipt(entry(**{key: 7}), entry(path="b"), entry(path="c", size=None)))
    assert [file.n_bytes for file in found.files] == [7, None, None]


def test_digests_may_be_written_in_any_case() -> None:
    """R41"""
    assert parse_receipt(receipt(entry(sha256=SHA.upper()))).files[0].sha256 == SHA


def test_other_keys_are_kept_and_ignored() -> None:
    """R41"""
    found = parse_receipt(receipt(entry(mtime=1.5), host="spark-a", when={"utc": [1]}))
    assert found.files[0].other == {"mtime": 1.5}
    assert found.other == {"host": "spark-a", "when": {"utc": [1]}}


def test_absent_extracted_files_are_none_at_all() -> None:
    """§6.7: good enough for a digest."""
    found = parse_receipt(json.dumps({"files": [entry()]}).encode())
    assert found.extracted_files == ()


def test_one_basename_may_stand_in_both_lists_but_twice_in_neither() -> None:
    """R41"""
    parse_receipt(receipt(entry(), extracted_files=[entry(sha256="f" * 64)]))
    assert complaint(receipt(entry(path="a/x"), entry(path="y"), entry(name="x", path="b/x"))) == (
        'files[2]: basename "x" stands in files[0] already'
    )
    assert complaint(receipt(entry(), extracted_files=[entry(), entry()])).startswith(
        "extracted_files[1]: basename"
    )


BAD = [
    (b"", "line 1 column 1: not JSON: Expecting value"),
    (b'{"files": [1,]}', "line 1 column 14: not JSON"),
    (b"\xff\xfe", "byte 0: not UTF-8 text"),
    (b"[]", "expected a JSON object, got a list"),
    (b"7", "expected a JSON object, got 7"),
    (b"{}", "files: missing"),
    (b'{"files": {}}', "files: expected a list, got an object"),
    (receipt(), "files: expected at least one entry"),
    (receipt(entry(), extracted_files=3), "extracted_files: expected a list, got 3"),
    (receipt("x"), 'files[0]: expected an object, got "x"'),
    (receipt({"sha256": SHA}), "files[0]: names no file"),
    (receipt({"path": "x"}), "files[0].sha256: missing; expected 64 hex digits"),
    (receipt(entry(sha256=7)), "files[0].sha256: expected 64 hex digits, got 7"),
    (receipt(entry(sha256=SHA + "0")), "files[0].sha256: expected 64 hex digits, got"),
    (receipt(entry(sha256=SHA + "\n")), "files[0].sha256: expected 64 hex digits, got"),
    (receipt(entry(sha256="٣" * 64)), "files[0].sha256: expected 64 hex digits, got"),
    (receipt(entry(path=["x"])), "files[0].path: expected a file name, got a list"),
    (receipt(entry(path="")), 'files[0].path: expected a file name, got ""'),
    (receipt(entry(path="a/")), "files[0].path: expected a file name"),
    (receipt(entry(path="a/..")), "files[0].path: expected a file name"),
    (receipt(entry(path="n" * 256)), "files[0].path: expected a file name"),
    (receipt(entry(path=f"x {SHA}\ny")), "files[0].path: a control character"),
    (receipt(entry(path="\ud800")), "files[0].path: a control character"),
    (receipt(entry(name="other.json")), "files[0]: contradicts itself: path"),
    (receipt(entry(size=1, bytes=2)), "files[0]: contradicts itself: size 1 and bytes 2"),
    (receipt(entry(size=-1)), "files[0].size: expected a number of bytes, got -1"),
    (receipt(entry(size=True)), "files[0].size: expected a number of bytes, got true"),
    (receipt(entry(bytes="7")), 'files[0].bytes: expected a number of bytes, got "7"'),
    (b'{"files": [], "files": []}', 'key "files" stands twice'),
    (b'{"files": ' + b"[" * 100_000, "nested too deeply"),
    (b'{"files": ' + b"9" * 5000 + b"}", "not JSON"),
    (b" " * (MAX_RECEIPT_BYTES + 1), "expected at most 4194304 bytes"),
    (receipt(*[0] * (MAX_FILES + 1)), "files: expected at most 10000 entries"),
]


@pytest.mark.parametrize(("data", "said"), BAD, ids=[said[:40] for _, said in BAD])
def test_a_malformed_receipt_is_one_line_that_names_the_entry(data: bytes, said: str) -> None:
    """R41"""
    assert complaint(data).startswith(said)


def test_the_third_file_is_named_by_its_index() -> None:
    files = [entry(path=name) for name in "abc"]
    assert complaint(receipt(*files, entry(path="d", sha256="abc"))) == (
        'files[3].sha256: expected 64 hex digits, got "abc"'
    )


@pytest.mark.parametrize("text", ["", "0" * 63, "0" * 65, "g" * 64, " " + "0" * 63])
def test_a_digest_is_exactly_64_hex_digits(text: str) -> None:
    with pytest.raises(ValueError, match="expected 64 hex digits, got"):
        parse_digest(text)
    assert parse_digest("A" * 64) == "a" * 64


names = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/"), min_size=1, max_size=60
).filter(lambda name: name not in (".", ".."))
digests = st.binary(min_size=32, max_size=32).map(bytes.hex)
sizes = st.none() | st.integers(0, 2**63 - 1)
lists = st.lists(
    st.builds(ReceiptFile, names, digests, sizes), max_size=5, unique_by=lambda file: file.name
).map(tuple)


@given(lists.filter(len), lists)
def test_a_rendered_receipt_reads_back_equal(
    files: tuple[ReceiptFile, ...], extracted: tuple[ReceiptFile, ...]
) -> None:
    made = Receipt(files, extracted, {"host": "x"})
    assert parse_receipt(render_receipt(made)) == made
    assert parse_receipt(render_receipt(replace(made, other={}))).other == {}


def said_of(data: bytes) -> str:
    """The error's message, empty for a good receipt; any other exception passes through."""
    try:
        parse_receipt(data)
    except ReceiptError as error:
        return str(error)
    return ""


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["files", "extracted_files", "path", "name", "sha256", "size"]), inner
        )
    ),
    max_leaves=8,
)


@given(json_values)
def test_any_json_is_a_receipt_or_one_line(value: Any) -> None:
    assert "\n" not in said_of(json.dumps(value).encode())


@given(st.binary(max_size=200))
def test_any_bytes_are_a_receipt_or_one_line(data: bytes) -> None:
    assert "\n" not in said_of(data)
