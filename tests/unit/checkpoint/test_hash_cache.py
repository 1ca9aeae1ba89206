"""When a remembered sha256 still speaks for a file (§6.7)."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsparkctl.checkpoint import digest, hash_cache
from dsparkctl.checkpoint.digest import digest_files
from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.checkpoint.hash_cache import HashCache, Stamp, parse_cache, stamp_of

OLD_NS = 1_700_000_000_123_456_789
SHA = "ab" * 32


def old(path: Path, data: bytes) -> Path:
    """A file that nobody touched for long."""
    path.write_bytes(data)
    os.utime(path, ns=(OLD_NS, OLD_NS))
    return path


def test_a_known_file_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [old(tmp_path / name, name.encode()) for name in ("a", "b")]
    cache = HashCache()
    first = digest_files(paths, cache=cache)
    assert len(cache) == 2

    def read(*_: object) -> str:
        raise AssertionError("it is read")

    monkeypatch.setattr(digest._Work, "digest", read)
    assert digest_files(paths, cache=parse_cache(cache.render())) == first


@pytest.mark.parametrize("what", ["size", "mtime", "inode"])
def test_a_file_that_looks_otherwise_is_hashed_again(tmp_path: Path, what: str) -> None:
    path = old(tmp_path / "a", b"before")
    cache = HashCache()
    (before,) = digest_files([path], cache=cache)
    if what == "size":
        old(path, b"longer than before")
    elif what == "mtime":
        path.write_bytes(b"beFore")
        os.utime(path, ns=(OLD_NS + 1, OLD_NS + 1))
    else:
        old(tmp_path / "b", b"beFore").rename(path)
    (after,) = digest_files([path], cache=cache)
    assert after.sha256 != before.sha256
    assert after == digest_files([path])[0]


def test_a_file_that_was_just_written_is_not_remembered(tmp_path: Path) -> None:
    """Within a clock tick it may be written to again and keep its mtime."""
    path = tmp_path / "a"
    path.write_bytes(b"x")
    cache, stamp = HashCache(), stamp_of(path)
    cache.put(path, stamp, SHA, now_ns=stamp.mtime_ns + hash_cache._SETTLED_NS - 1)
    assert cache.get(path, stamp) is None
    cache.put(path, stamp, SHA, now_ns=stamp.mtime_ns + hash_cache._SETTLED_NS)
    assert cache.get(path, stamp) == SHA


def test_the_cache_is_bounded_and_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hash_cache, "MAX_ENTRIES", 3)
    cache, stamp = HashCache(), Stamp(1, 0, 1)
    for n in (0, 1, 2, 0, 3):
        cache.put(Path(f"/f{n}"), stamp, SHA, now_ns=OLD_NS)
    held = [n for n in range(4) if cache.get(Path(f"/f{n}"), stamp)]
    assert held == [0, 2, 3]


def test_a_file_that_changes_while_it_is_hashed_has_no_digest(tmp_path: Path) -> None:
    """Of the same size too: the mtime tells."""
    path = old(tmp_path / "a", b"12345678")
    cache = HashCache()

    def meanwhile(_: int) -> None:
        path.write_bytes(b"87654321")

    with pytest.raises(CheckpointError, match="changed while it was read"):
        digest_files([path], progress=meanwhile, cache=cache)
    assert len(cache) == 0


ENTRY = {"/a": [1, 2, 3, SHA]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b"[" * 100_000,
        json.dumps({"version": 2, "files": {}}).encode(),
        json.dumps({"version": 1, "files": []}).encode(),
        json.dumps({"version": 1, "files": {"/a": [1, 2, SHA]}}).encode(),
        json.dumps({"version": 1, "files": {"/a": [1, 2, "3", SHA]}}).encode(),
        json.dumps({"version": 1, "files": {"/a": [1, 2, True, SHA]}}).encode(),
        json.dumps({"version": 1, "files": {"/a": [1, 2, 3, SHA[:-1]]}}).encode(),
        json.dumps({"version": 1, "files": {"/a": {}}}).encode(),
    ],
)
def test_anything_that_render_would_not_write_is_refused_in_one_line(data: bytes) -> None:
    parse_cache(json.dumps({"version": 1, "files": ENTRY}).encode())
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        parse_cache(data)


@given(st.dictionaries(st.text("abc é/", min_size=1), st.tuples(*[st.integers(0)] * 3)))
def test_what_is_rendered_reads_back(stamps: dict[str, tuple[int, int, int]]) -> None:
    cache = HashCache()
    for name, stamp in stamps.items():
        cache.put(Path("/", name), Stamp(*stamp), SHA, now_ns=stamp[1] + OLD_NS)
    again = parse_cache(cache.render())
    assert len(again) == len(cache)
    for name in stamps:
        path = Path("/", name)
        (stamp, _) = cache._known[str(path)]
        assert again.get(path, stamp) == SHA
