"""Where hashes are kept between two starts, and when that file is not believed (§6.7)."""

import logging
import os
from pathlib import Path

import pytest

from dspark_worker import hash_store
from dsparkctl.checkpoint.hash_cache import MAX_CACHE_BYTES, HashCache, Stamp

STAMP = Stamp(1, 2, 3)
FILE = Path("/checkpoint/model.safetensors")


def kept(path: Path) -> HashCache:
    cache = HashCache()
    cache.put(FILE, STAMP, "cd" * 32, now_ns=1 << 60)
    hash_store.save(path, cache)
    return cache


def test_what_is_saved_is_loaded_and_its_folder_is_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "hashes.json"
    kept(path)
    assert hash_store.load(path).get(FILE, STAMP) == "cd" * 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["hashes.json"]


@pytest.mark.parametrize("data", [b"{", b"\0" * 10, b" " * (MAX_CACHE_BYTES + 1)])
def test_a_damaged_cache_is_ignored_with_one_line_and_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    path = tmp_path / "hashes.json"
    path.write_bytes(data)
    assert len(hash_store.load(path)) == 0
    (record,) = caplog.records
    assert record.getMessage().startswith(f"hash cache {path} is ignored: ")
    kept(path)
    assert len(hash_store.load(path)) == 1


def test_a_cache_that_others_may_write_to_is_not_believed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "hashes.json"
    kept(path)
    path.chmod(0o666)
    assert len(hash_store.load(path)) == 0
    assert "others may write to it" in caplog.text
    kept(path)
    assert len(hash_store.load(path)) == 1


def test_a_folder_in_its_place_is_a_line_and_no_cache(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "hashes.json"
    path.mkdir(mode=0o700)
    assert len(hash_store.load(path)) == 0
    kept(path)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert path.is_dir()


def test_a_pipe_in_its_place_is_a_line_and_holds_no_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "hashes.json"
    os.mkfifo(path, 0o600)
    assert len(hash_store.load(path)) == 0
    assert "is ignored: not a regular file" in caplog.text


def test_nothing_is_written_where_nothing_is_new(tmp_path: Path) -> None:
    hash_store.save(tmp_path / "hashes.json", HashCache())
    assert not list(tmp_path.iterdir())


def test_the_default_lies_in_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/x")
    assert hash_store.default_path() == Path("/var/cache/x/dsparkctl/hashes.json")
    monkeypatch.setenv("HOME", "/home/x")
    for useless in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", useless)
        assert hash_store.default_path() == Path("/home/x/.cache/dsparkctl/hashes.json")
