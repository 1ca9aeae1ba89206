"""The kill switch: off while a file exists, one look a second (R40)."""

from pathlib import Path

import pytest

from dsparkctl.client.switch import Switch, is_there

FILE = Path("/run/dspark/off")


class Disk:
    """A file that tests put there and take away; counts the looks."""

    def __init__(self) -> None:
        self.is_there = False
        self.error: OSError | None = None
        self.n_looks = 0

    def exists(self, path: Path) -> bool:
        assert path == FILE
        self.n_looks += 1
        if self.error is not None:
            raise self.error
        return self.is_there


@pytest.fixture
def disk() -> Disk:
    return Disk()


def test_without_a_path_it_is_never_off_and_looks_nowhere(disk: Disk) -> None:
    switch = Switch(None, disk.exists)
    assert not any(switch.is_off(float(now)) for now in range(10))
    assert disk.n_looks == 0


def test_it_is_off_while_the_file_is_there(disk: Disk) -> None:
    switch = Switch(FILE, disk.exists)
    seen = []
    for now in range(6):
        disk.is_there = 2 <= now < 4
        seen.append(switch.is_off(float(now)))
    assert seen == [False, False, True, True, False, False]


def test_the_first_round_looks_whatever_the_clock_says(disk: Disk) -> None:
    disk.is_there = True
    assert Switch(FILE, disk.exists).is_off(-5.0)


def test_it_looks_at_most_once_a_second(disk: Disk) -> None:
    switch = Switch(FILE, disk.exists)
    for step in range(3000):
        switch.is_off(100 + step / 1000)
    assert disk.n_looks == 3
    disk.is_there = True
    assert not switch.is_off(102.999)
    assert switch.is_off(103.0)


def test_a_look_that_fails_leaves_the_last_answer(disk: Disk) -> None:
    """Neither does it stop a drafting engine, nor start one that somebody has stopped."""
    switch = Switch(FILE, disk.exists)
    disk.error = PermissionError(13, "Permission denied")
    assert not switch.is_off(0)
    assert switch.trouble == f"{FILE}: cannot be looked at: Permission denied"
    disk.error, disk.is_there = None, True
    assert switch.is_off(1)
    assert switch.trouble == ""
    disk.error, disk.is_there = PermissionError(13, "Permission denied"), False
    assert switch.is_off(2)
    disk.error = None
    assert not switch.is_off(3)


def test_a_failed_look_waits_its_second_too(disk: Disk) -> None:
    switch = Switch(FILE, disk.exists)
    disk.error = OSError("stale handle")
    for step in range(10):
        switch.is_off(step / 10)
    assert disk.n_looks == 1
    assert switch.trouble.endswith("stale handle")


def test_what_counts_as_there_on_a_real_disk(tmp_path: Path) -> None:
    path = tmp_path / "off"
    assert not is_there(path)
    assert not is_there(tmp_path / "no" / "such" / "folder")
    path.touch()
    assert is_there(path)
    assert not is_there(path / "below a file")
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    assert is_there(path)


def test_a_path_that_nobody_can_look_at_raises_for_the_switch_to_judge(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(OSError, match=r"symbolic links"):
        is_there(loop / "off")
    assert not Switch(loop / "off").is_off(0)
