"""Wheels for a host without internet (issue 5, part 2), sudo, and variables nobody reads."""

import zipfile
from pathlib import Path

import pytest

from dsparkctl import __version__
from dsparkctl.rollout.deploy_sparks import package_digest
from dsparkctl.rollout.facts import WorkerFacts
from dsparkctl.rollout.host import Ran, SudoError
from dsparkctl.rollout.own_wheel import own_wheel
from dsparkctl.rollout.ssh.sudo import Root, find_root
from dsparkctl.rollout.wheelhouse import WheelhouseError, read_wheelhouse, refused_by_host
from dsparkctl.rollout.wheels_from_index import pip_argv, platform_tags

HOST = WorkerFacts("x86host", python=(3, 11, 2), libc="glibc-2.36")
OURS, TORCH = "dsparkctl-0.1.0-py3-none-any.whl", "torch-2.9-cp311-cp311-manylinux_2_28_x86_64.whl"


def house(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).write_bytes(name.encode())
    return folder


def test_a_wheelhouse_needs_our_wheel_and_torchs(tmp_path: Path) -> None:
    with pytest.raises(WheelhouseError, match="no wheel of dsparkctl; a worker needs exactly one"):
        read_wheelhouse(tmp_path)
    house(tmp_path, OURS)
    with pytest.raises(WheelhouseError, match="no wheel of torch"):
        read_wheelhouse(tmp_path)
    house(tmp_path, TORCH, "dsparkctl-0.2.0-py3-none-any.whl")
    with pytest.raises(WheelhouseError, match="2 wheels of dsparkctl"):
        read_wheelhouse(tmp_path)


def test_a_file_that_is_no_wheel_by_name_is_named(tmp_path: Path) -> None:
    house(tmp_path, OURS, TORCH, "x.whl")
    with pytest.raises(WheelhouseError, match=r"x\.whl: not a wheel's name"):
        read_wheelhouse(tmp_path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("numpy-2.4-cp311-cp311-manylinux_2_27_x86_64.whl", ""),
        ("bcrypt-5.0-cp39-abi3-manylinux_2_34_x86_64.whl", ""),
        ("numpy-2.4-cp312-cp312-manylinux_2_27_x86_64.whl", "is for cp312"),
        ("numpy-2.4-cp311-cp311-manylinux_2_27_aarch64.whl", "is for manylinux_2_27_aarch64"),
    ],
)
def test_a_wheel_that_the_hosts_pip_would_refuse_is_told_before_it_is_sent(
    tmp_path: Path, name: str, words: str
) -> None:
    reason = refused_by_host(read_wheelhouse(house(tmp_path, OURS, TORCH, name)), HOST)
    assert words in reason
    assert bool(reason) == bool(words)


def test_pip_is_asked_for_the_hosts_python_and_platform_and_for_wheels_alone(
    tmp_path: Path,
) -> None:
    tags = platform_tags(HOST)
    assert tags[0] == "manylinux_2_36_x86_64"
    assert "manylinux_2_39_x86_64" not in tags
    argv = pip_argv(tmp_path / OURS, tmp_path, tags, HOST)
    assert {"--only-binary=:all:", "--abi=cp311", f"--platform={tags[0]}"} <= set(argv)
    assert argv[argv.index("--python-version") + 1] == "3.11.2"[:4]
    with pytest.raises(WheelhouseError, match=r"its C library is musl-1\.2, not glibc"):
        platform_tags(HOST.but(libc="musl-1.2"))


def test_our_own_wheel_is_the_same_bytes_twice_and_installs_what_runs_here(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir()
    second.mkdir()
    wheel, again = own_wheel(first), own_wheel(second)
    assert wheel.read_bytes() == again.read_bytes()
    assert package_digest(wheel) == package_digest(again)
    names = zipfile.ZipFile(wheel).namelist()
    assert f"dsparkctl-{__version__}.dist-info/METADATA" in names
    for part in ("dsparkctl/rollout/templates/dspark-worker.service",
                 "dsparkctl/rollout/on_host/lock.py", "dspark_worker/serve.py"):  # fmt: skip
        assert part in names


# --- sudo, and variables that nobody reads --------------------------------------------------------


def sudo(quiet: tuple[int, str], password: tuple[int, str] = (0, ""), uid: str = "1000") -> Root:
    """find_root where sudo answers so without and with a password."""

    def run(argv: object, root: Root) -> Ran:
        if argv == ("id", "-u"):
            return Ran(("id", "-u"), 0, uid.encode(), b"")
        code, said = quiet if "-n" in root.prefix else password
        return Ran(("true",), code, b"", said.encode())

    return find_root("x86host", run, lambda _: "secret")


def test_root_itself_and_a_sudo_that_asks_nothing_need_no_password() -> None:
    assert sudo((1, ""), uid="0").prefix == ()
    assert sudo((0, "")).prefix == ("sudo", "-n", "--")


def test_a_password_goes_in_front_of_the_input_and_shows_nowhere() -> None:
    root = sudo((1, "sudo: a password is required\n"))
    assert root.lead == b"secret\n"
    assert "-S" in root.prefix
    assert "secret" not in repr(root)
    assert "secret" not in " ".join(root.prefix)


@pytest.mark.parametrize(
    ("quiet", "password", "words"),
    [
        ((127, "sh: sudo: not found"), (0, ""), "it has no sudo"),
        ((1, "sudo: x is not in the sudoers file."), (0, ""), "x is not in the sudoers file"),
        ((1, "sudo: a password is required"), (1, "sudo: 1 incorrect password attempt"),
         "sudo takes no such password: 1 incorrect password attempt"),
    ],
)  # fmt: skip
def test_a_sudo_that_refuses_is_one_line(
    quiet: tuple[int, str], password: tuple[int, str], words: str
) -> None:
    with pytest.raises(SudoError, match=words):
        sudo(quiet, password)
