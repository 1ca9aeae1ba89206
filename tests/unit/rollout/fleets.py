"""Fleets, wheels and Pythons for tests of the rollout."""

import os
import shutil
import socket
import sys
import zipfile
from pathlib import Path

import pytest

from dsparkctl import __version__
from dsparkctl.checkpoint.digest import digest_files
from dsparkctl.config.fleet import Fleet
from dsparkctl.config.source import parse_fleet
from dsparkctl.contract.receipt import Receipt, render_receipt

TOP = Path(__file__).parents[3]
GOLDEN = TOP / "tests" / "golden" / "drafter" / "a"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="plans give folders to their owners")


def write_wheel(folder: Path, name: str, version: str = "1.0", text: str = "") -> Path:
    """A wheel that only has a name and one file."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for at, said in {
            f"{name}.txt": text or name,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/RECORD": "",
        }.items():
            archive.writestr(zipfile.ZipInfo(at, (2020, 1, 1, 0, 0, 0)), said)
    return path


def write_wheels(folder: Path, text: str = "") -> Path:
    """A wheelhouse whose wheels hold nothing: enough for a fake Python."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    for name, version in (("dsparkctl", __version__), ("torch", "2.13.0"), ("pip", "26.0.1")):
        write_wheel(folder, name, version, text)
    return folder


def fake_python(path: Path) -> Path:
    """A Python whose `-m venv` makes an environment at once: one that installs nothing and finds
    the packages of this source tree. Everything else is the real one."""
    real = f"exec env PYTHONPATH={TOP}:{TOP}/worker {sys.executable}"
    inner = f'#!/bin/sh\ncase "$*" in *"-m pip"*) exit 0 ;; esac\n{real} "$@"\n'
    path.write_text(
        "#!/bin/sh\n"
        'if [ "$1 $2" = "-m venv" ]; then for last; do :; done; mkdir -p "$last/bin" &&\n'
        f"cat > \"$last/bin/python\" <<'EOF'\n{inner}EOF\n"
        'chmod 755 "$last/bin/python"; exit; fi\n'
        f'exec {sys.executable} "$@"\n'
    )
    path.chmod(0o755)
    return path


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def write_checkpoint(folder: Path) -> Path:
    """The golden checkpoint and its receipt; the receipt's path."""
    shutil.copytree(GOLDEN, folder / "checkpoint")
    paths = [path for path in sorted((folder / "checkpoint").iterdir()) if path.is_file()]
    receipt = folder / "DSPARK_COPY_DONE"
    receipt.write_bytes(render_receipt(Receipt(digest_files(paths), digest_files(paths))))
    return receipt


def fleet_text(folder: Path, python: Path | str, more: str = "", data: int = 0) -> str:
    return f"""\
version: 1
hosts:
  x86host: {{ssh: 127.0.0.1}}
worker:
  host: x86host
  user: root
  checkpoint: {folder}/checkpoint
  receipt: {folder}/DSPARK_COPY_DONE
  drafter: scripted
  listen: tcp://127.0.0.1:{data or free_port()}
  admin: [tcp://127.0.0.1:{free_port()}]
{more}release:
  python: {python}
  gate_timeout_s: 30
  settle_s: 0
  lock_lease_s: 30
"""


def fleet(folder: Path, python: Path | str = "/usr/bin/python3", more: str = "") -> Fleet:
    text = fleet_text(folder, python, more)
    return parse_fleet(text.encode(), Path("dspark.yaml"))
