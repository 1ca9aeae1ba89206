"""Hashing files, and holding them against a receipt (§6.7)."""

import hashlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from threading import active_count

import pytest

from dsparkctl.checkpoint.digest import (
    CHUNK_BYTES,
    Finding,
    State,
    default_threads,
    digest_files,
    verify_files,
)
from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.contract.receipt import ReceiptFile

SIZES = [0, 1, 1000, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES]


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"model-{i}.safetensors" for i in range(len(SIZES))]
    for path, size in zip(paths, SIZES, strict=True):
        path.write_bytes(os.urandom(size))
    return paths


@pytest.mark.parametrize("n_threads", [None, 1, 3])
def test_digests_are_sha256sums_in_the_order_asked(
    shards: list[Path], n_threads: int | None
) -> None:
    """§6.7: whatever a file's size is to a chunk's."""
    printed = subprocess.run(["sha256sum", *shards], capture_output=True, check=True, text=True)
    expected = [line.split()[0] for line in printed.stdout.splitlines()]
    found = digest_files(shards, n_threads=n_threads)
    assert [file.sha256 for file in found] == expected
    assert [file.name for file in found] == [path.name for path in shards]
    assert [file.n_bytes for file in found] == SIZES


def test_progress_adds_up_to_all_bytes(shards: list[Path]) -> None:
    steps: list[int] = []
    digest_files(shards, progress=steps.append)
    assert sum(steps) == sum(SIZES)
    assert max(steps) <= CHUNK_BYTES


def test_no_files_are_no_work() -> None:
    assert digest_files([]) == ()
    assert default_threads() >= 1


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "No such file"),
        (lambda path: path.mkdir(), "not a regular file"),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.symlink_to(path), "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, make: Callable[[Path], None], said: str
) -> None:
    path = tmp_path / "model.safetensors"
    make(path)
    with pytest.raises(CheckpointError, match=said) as caught:
        digest_files([path])
    assert str(caught.value).startswith(f"{path}: ")


def test_a_file_that_grows_while_it_is_read_is_refused(shards: list[Path]) -> None:
    """A digest of something that never stood on disk would be worth nothing."""
    growing = shards[-1]

    def grow(_: int) -> None:
        with growing.open("ab") as file:
            file.write(b"x")

    with pytest.raises(CheckpointError, match="changed while it was read"):
        digest_files([growing], progress=grow)


def test_an_interrupt_stops_every_thread_at_once(shards: list[Path]) -> None:
    """Ctrl-C must not wait for gigabytes."""
    n_before = active_count()
    calls: list[int] = []

    def interrupt(n_bytes: int) -> None:
        calls.append(n_bytes)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        digest_files([shards[-1], *shards[3:5]], n_threads=2, progress=interrupt)
    assert len(calls) == 1
    assert active_count() == n_before


def listed(path: Path, *, n_bytes: int | None = None) -> ReceiptFile:
    return ReceiptFile(path.name, hashlib.sha256(path.read_bytes()).hexdigest(), n_bytes)


def test_files_that_match_are_ok_with_and_without_a_size(
    shards: list[Path], tmp_path: Path
) -> None:
    entries = [listed(path, n_bytes=size) for path, size in zip(shards, SIZES, strict=True)]
    assert {f.state for f in verify_files(entries, tmp_path)} == {State.OK}
    assert {f.state for f in verify_files([listed(p) for p in shards], tmp_path)} == {State.OK}


def test_the_basename_is_sought_in_the_root(shards: list[Path], tmp_path: Path) -> None:
    """R41: the receipt's folders are those of another machine."""
    entry = listed(shards[2])
    moved = ReceiptFile(f"/data/dspark/{entry.name}", entry.sha256)
    assert verify_files([moved], tmp_path) == (Finding(entry.name, State.OK),)


def test_missing_truncated_and_differing_files_are_named(
    shards: list[Path], tmp_path: Path
) -> None:
    """§6.7; a partial copy leaves all three behind, and links that lead nowhere."""
    entries = [listed(path, n_bytes=path.stat().st_size) for path in shards[2:7]]
    shards[2].unlink()
    os.truncate(shards[3], 10)
    shards[4].write_bytes(b"\0" * SIZES[4])
    shards[5].unlink()
    shards[5].symlink_to("nowhere")
    findings = verify_files(entries, tmp_path)
    assert [finding.state for finding in findings] == [
        State.MISSING,
        State.SIZE_DIFFERS,
        State.CONTENT_DIFFERS,
        State.MISSING,
        State.OK,
    ]
    assert findings[1].detail == f"truncated: 10 bytes, the receipt says {SIZES[3]}"
    assert entries[2].sha256 in findings[2].detail
    assert "nowhere" in findings[3].detail


def test_a_longer_file_is_not_the_one_that_is_listed(shards: list[Path], tmp_path: Path) -> None:
    entry = listed(shards[2], n_bytes=SIZES[2])
    with shards[2].open("ab") as file:
        file.write(b"x")
    assert verify_files([entry], tmp_path)[0].detail.startswith("too long: 1001 bytes")


def test_a_file_of_another_size_is_not_read(shards: list[Path], tmp_path: Path) -> None:
    steps: list[int] = []
    verify_files([listed(shards[-1], n_bytes=5)], tmp_path, progress=steps.append)
    assert steps == []


def test_a_listed_name_that_is_no_regular_file_is_said_to_be_none(tmp_path: Path) -> None:
    """A pipe must not hang the hash, nor read as absent."""
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    names = ("pipe.safetensors", "folder.safetensors")
    findings = verify_files([ReceiptFile(name, "0" * 64) for name in names], tmp_path)
    assert [finding.detail for finding in findings] == ["not a regular file"] * 2
