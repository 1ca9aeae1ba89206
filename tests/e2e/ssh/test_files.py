"""Files on a real sshd (issue 5, part 2): resumed, verified, never half under a final name."""

import hashlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from dsparkctl.rollout.host import CommandFailed, HostError, SshError
from dsparkctl.rollout.ssh.machine import SshHost
from tests.e2e.ssh.conftest import Opener
from tests.sshd import Sshd


def big(path: Path, n_bytes: int = 3_000_001) -> tuple[Path, str]:
    data = os.urandom(n_bytes)
    path.write_bytes(data)
    return path, hashlib.sha256(data).hexdigest()


def test_a_large_file_arrives_and_its_progress_is_told(box: SshHost, tmp_path: Path) -> None:
    local, digest = big(tmp_path / "local")
    remote, told = tmp_path / "a b'c" / "remote", []
    remote.parent.mkdir()
    box.put_file(local, PurePosixPath(remote), sha256=digest, progress=lambda *n: told.append(n))
    assert remote.read_bytes() == local.read_bytes()
    assert [path.name for path in remote.parent.iterdir()] == ["remote"]
    assert told == sorted(told)
    assert told[-1] == (3_000_001, 3_000_001)


@pytest.mark.parametrize("n_there", [1, 1_000_000, 3_000_001])
def test_an_upload_goes_on_where_the_last_one_ended(
    box: SshHost, tmp_path: Path, n_there: int
) -> None:
    local, digest = big(tmp_path / "local")
    (tmp_path / "remote.part").write_bytes(local.read_bytes()[:n_there])
    told: list[int] = []
    box.put_file(
        local,
        PurePosixPath(tmp_path / "remote"),
        sha256=digest,
        progress=lambda done, _: told.append(done),
    )
    assert (tmp_path / "remote").read_bytes() == local.read_bytes()
    assert min(told, default=n_there) >= n_there


@pytest.mark.parametrize("there", [b"another beginning", b"x" * 4_000_000])
def test_a_part_of_something_else_is_sent_anew(box: SshHost, tmp_path: Path, there: bytes) -> None:
    local, digest = big(tmp_path / "local")
    (tmp_path / "remote.part").write_bytes(there)
    box.put_file(local, PurePosixPath(tmp_path / "remote"), sha256=digest)
    assert (tmp_path / "remote").read_bytes() == local.read_bytes()


def test_bytes_with_another_digest_never_get_the_name(box: SshHost, tmp_path: Path) -> None:
    local, _ = big(tmp_path / "local")
    (tmp_path / "remote").write_text("before")
    with pytest.raises(HostError, match=r"^box: .*remote: sha256 of what arrived is [0-9a-f]{64}"):
        box.put_file(local, PurePosixPath(tmp_path / "remote"), sha256="ab" * 32)
    assert (tmp_path / "remote").read_text() == "before"
    assert not (tmp_path / "remote.part").exists()


def test_a_link_that_breaks_leaves_a_part_which_the_next_attempt_completes(
    opened: Opener, sshd: Sshd, tmp_path: Path
) -> None:
    local, digest = big(tmp_path / "local", 40_000_000)
    host = opened()
    host.run(("true",))
    child = sshd.children()[-1]

    def cut(done: int, _n: int) -> None:
        if done > 10_000_000:
            os.kill(child, signal.SIGKILL)

    remote = PurePosixPath(tmp_path / "remote")
    with pytest.raises(SshError, match="the connection was lost"):
        host.put_file(local, remote, sha256=digest, progress=cut)
    assert not Path(remote).exists()
    n_there = (tmp_path / "remote.part").stat().st_size
    told: list[int] = []
    host.put_file(local, remote, sha256=digest, progress=lambda done, _: told.append(done))
    assert Path(remote).read_bytes() == local.read_bytes()
    assert told[0] > n_there > 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """2 MiB of room."""
    if os.getuid() != 0:
        pytest.skip("needs root, to mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    subprocess.run(mount, check=True)
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_one_line_and_what_stood_there_stands(
    box: SshHost, tmp_path: Path, small_disk: Path
) -> None:
    local, digest = big(tmp_path / "local")
    (small_disk / "remote").write_text("before")
    with pytest.raises(CommandFailed, match=r"^box: upload remote ended .*No space left") as caught:
        box.put_file(local, PurePosixPath(small_disk / "remote"), sha256=digest)
    assert "\n" not in str(caught.value)
    with pytest.raises(CommandFailed, match="No space left"):
        box.write(PurePosixPath(small_disk / "remote"), bytes(3_000_000))
    assert (small_disk / "remote").read_text() == "before"
    assert {path.name for path in small_disk.iterdir()} == {"remote", "remote.part"}


def test_many_files_arrive_in_one_stream_and_are_checked(box: SshHost, tmp_path: Path) -> None:
    source, there = tmp_path / "source", tmp_path / "there" / "deep"
    source.mkdir()
    files = [source / f"file {n}.whl" for n in range(300)]
    for n, path in enumerate(files):
        path.write_bytes(os.urandom(n * 37))
    told: list[tuple[int, int]] = []
    box.put_tree(files, PurePosixPath(there), progress=lambda *n: told.append(n))
    assert {p.name: p.read_bytes() for p in there.iterdir()} == {
        p.name: p.read_bytes() for p in files
    }
    n_bytes = sum(p.stat().st_size for p in files)
    assert told[-1] == (n_bytes, n_bytes)


def test_a_file_that_changes_while_it_is_sent_is_found_out(
    box: SshHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, _ = big(tmp_path / "x.whl", 1000)
    monkeypatch.setattr("dsparkctl.rollout.ssh.upload.sha256_of", lambda _path: "cd" * 32)
    with pytest.raises(CommandFailed, match=r"check 1 files in .* ended with 1: .*"):
        box.put_tree([local], PurePosixPath(tmp_path / "there"))


def test_a_small_file_is_written_whole_with_its_mode(box: SshHost, tmp_path: Path) -> None:
    path = PurePosixPath(tmp_path / "new 'file'")
    for data, mode in ((b"one\n", 0o600), (b"", 0o644), (os.urandom(100_000), 0o755)):
        box.write(path, data, mode=mode)
        assert Path(path).read_bytes() == data
        assert Path(path).stat().st_mode & 0o7777 == mode
    assert len(list(tmp_path.iterdir())) == 1


def test_a_writer_that_is_killed_leaves_what_was_there(
    opened: Opener, sshd: Sshd, tmp_path: Path
) -> None:
    host = opened()
    path = PurePosixPath(tmp_path / "unit")
    host.write(path, b"before")
    child = sshd.children()[-1]
    threading.Timer(0.05, lambda: os.kill(child, signal.SIGKILL)).start()

    def write_on() -> None:
        for _ in range(1000):
            host.write(path, b"after" * 50_000)

    with pytest.raises(HostError):
        write_on()
    deadline_s = time.monotonic() + 5
    while time.monotonic() < deadline_s and any(p.name != "unit" for p in tmp_path.iterdir()):
        time.sleep(0.05)
    assert Path(path).read_bytes() in (b"before", b"after" * 50_000)


def test_a_folder_that_is_not_there_is_one_line(box: SshHost, tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match=r"^box: write /.* ended with 1: .*No such file"):
        box.write(PurePosixPath(tmp_path / "none" / "x"), b"data")


def test_names_that_a_checksum_file_would_escape_are_refused(box: SshHost, tmp_path: Path) -> None:
    odd = tmp_path / "a\nb"
    odd.write_text("")
    with pytest.raises(ValueError, match="no name for a file that is sent"):
        box.put_tree([odd], PurePosixPath(tmp_path / "there"))
