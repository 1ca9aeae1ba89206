"""Rooms of ours travel to a host as one program (issue 5 §2: standard library only there)."""

import subprocess
import sys
from pathlib import Path

from dsparkctl.rollout.parcel import PYTHON, parcel

LIGHT = ("dsparkctl.contract", "dsparkctl.net")
SHOW = "dsparkctl.rollout.ping_program"


def run(program: bytes, *args: str, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-S", *PYTHON[1:], *args]  # -S: no installed package at all
    return subprocess.run(command, input=program, capture_output=True, cwd=cwd, check=False)


def test_it_runs_where_nothing_of_ours_is_installed_and_leaves_nothing(tmp_path: Path) -> None:
    """Nor does a namesake in the account's folder count."""
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    asked = (
        '{"endpoint": "tcp://127.0.0.1:1", "within_s": 5,'
        ' "course": {"n": 1, "pause_s": 0, "payload_bytes": 0, "timeout_s": 1}}'
    )
    done = run(parcel(SHOW, LIGHT), asked, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"connection refused" in done.stdout
    assert [one.name for one in tmp_path.iterdir()] == ["json.py"]


def test_a_parcel_that_forgets_a_room_says_so(tmp_path: Path) -> None:
    """What travels is what was named."""
    done = run(parcel(SHOW, LIGHT[:1]), "{}", cwd=tmp_path)
    assert b"No module named 'dsparkctl.net'" in done.stderr


def test_equal_rooms_make_equal_parcels_of_bearable_size() -> None:
    assert parcel(SHOW, LIGHT) == parcel(SHOW, tuple(reversed(LIGHT)))
    assert len(parcel(SHOW, LIGHT)) < 100_000
