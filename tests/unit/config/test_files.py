"""Small files: read within a bound, written whole or not at all."""

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dsparkctl.config.errors import ReadError, WriteError
from dsparkctl.config.files import read_receipt, read_whole, write_whole, writing
from dsparkctl.contract.receipt import ReceiptError


@contextmanager
def file_size_limit(n_bytes: int) -> Iterator[None]:
    """A full disk that any system can play: writes beyond the limit are cut short, then fail."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_file_is_read_up_to_its_bound_and_not_beyond(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"12345")
    assert read_whole(path, max_bytes=5) == b"12345"
    with pytest.raises(ReadError, match="larger than 4 bytes"):
        read_whole(path, max_bytes=4)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ReadError) as caught:
            read_whole(path, max_bytes=1)
        assert str(caught.value).startswith(f"{path}: cannot be read: ")


def test_a_bad_receipt_is_named_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "DSPARK_COPY_DONE"
    path.write_text("{}")
    with pytest.raises(ReceiptError) as caught:
        read_receipt(path)
    assert str(caught.value).startswith(f"{path}: files: missing")


def test_what_is_written_is_there_and_nothing_else_is(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_whole(path, b"one")
    write_whole(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_has_the_umasks_mode_and_a_replaced_one_keeps_its_own(tmp_path: Path) -> None:
    path = tmp_path / "x"
    mask = os.umask(0o027)
    try:
        write_whole(path, b"")
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.chmod(0o604)
    write_whole(path, b"")
    assert stat.S_IMODE(path.stat().st_mode) == 0o604


@pytest.mark.parametrize("exists", [True, False])
def test_a_full_disk_leaves_no_half_file_and_no_temporary_one(tmp_path: Path, exists: bool) -> None:
    """Field report 25."""
    path = tmp_path / "x"
    if exists:
        path.write_bytes(b"old")
    with file_size_limit(1000), pytest.raises(WriteError) as caught:
        write_whole(path, b"n" * 2000)
    assert str(caught.value).startswith(f"{path}: cannot be written: ")
    assert [p.read_bytes() for p in tmp_path.iterdir()] == ([b"old"] if exists else [])


def test_a_disk_that_is_full_only_at_the_sync_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delayed allocation: write() succeeds, fsync() fails."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteError, match="No space left on device"):
        write_whole(tmp_path / "x", b"data")
    assert list(tmp_path.iterdir()) == []


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Field report 25: a short write is no error."""
    whole_write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: whole_write(fd, bytes(data[:3])))
    write_whole(tmp_path / "x", b"0123456789")
    assert (tmp_path / "x").read_bytes() == b"0123456789"


def test_bytes_that_did_not_arrive_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Field report 25: the size is verified before the rename."""
    whole_write = os.write

    def lossy(descriptor: int, data: bytes) -> int:
        whole_write(descriptor, bytes(data)[:-1])
        return len(data)

    monkeypatch.setattr(os, "write", lossy)
    with pytest.raises(WriteError, match="9 of 10 bytes arrived"):
        write_whole(tmp_path / "x", b"0123456789")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_can_be_protected(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_whole(path, b"mine", replace=False)
    with pytest.raises(WriteError, match="exists already"):
        write_whole(path, b"other", replace=False)
    assert path.read_bytes() == b"mine"


def test_only_regular_files_are_replaced(tmp_path: Path) -> None:
    """`--out /dev/stdout` as root must not put a file in a device's place."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(WriteError, match="not a regular file"):
            write_whole(path, b"x")


def test_a_link_is_written_through(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write_whole(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="No such file or directory"):
        write_whole(tmp_path / "none" / "x", b"x")


def test_pieces_become_one_file_only_when_the_last_one_is_there(tmp_path: Path) -> None:
    path = tmp_path / "whole"
    with writing(path) as write:
        write(b"one ")
        write(memoryview(b"two"))
        assert not path.exists()
    assert path.read_bytes() == b"one two"

    def breaking_off() -> None:
        with writing(path) as write:
            write(b"half")
            raise RuntimeError("broke off")

    with pytest.raises(RuntimeError, match="broke off"):
        breaking_off()
    assert path.read_bytes() == b"one two"
    assert [*tmp_path.iterdir()] == [path]


def test_a_pipe_that_nobody_writes_to_is_at_its_end_instead_of_being_waited_for(
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert read_whole(tmp_path / "pipe", max_bytes=9) == b""


def test_what_another_process_writes_into_a_pipe_is_read_whole() -> None:
    """A shell's `<(command)`."""
    script = '"$0" -c "import sys; from pathlib import Path; from dsparkctl.config.files import'
    script += ' read_whole; print(len(read_whole(Path(sys.argv[1]), max_bytes=1 << 20)))" '
    script += "<(sleep 0.2; head -c 200000 /dev/zero)"
    done = subprocess.run(["bash", "-c", script, sys.executable], capture_output=True, text=True)
    assert done.stdout == "200000\n", done.stderr
