"""Who installs what: a Spark has no typer, paramiko, rich or click; a laptop no torch."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

BANNED = ("typer", "paramiko", "rich", "click", "torch", "safetensors")

LIGHT_ROOMS = ("contract", "state", "net", "checkpoint", "config")

HEAVY_CLIENT = (
    *("ring", "staging", "pinned", "broadcast", "proxy", "speaker", "proposer", "start"),
    "speculator",
)
"""Rank 0's rooms that hold tensors, or stand on those."""

LIGHT_WORKER = ("desk", "drafter", "scripted", "selftest", "server", "stats", "serve", "options")

_PROGRAM = """
import importlib, sys

class Ban:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {banned!r}:
            raise ImportError("banned: " + name)

sys.meta_path.insert(0, Ban())
for name in {names!r}:
    importlib.import_module(name)
"""


def light_modules() -> list[str]:
    rooms = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for room in LIGHT_ROOMS
        for path in sorted((ROOT / "dsparkctl" / room).glob("*.py"))
    ]
    client = [
        f"dsparkctl.client.{path.stem}"
        for path in sorted((ROOT / "dsparkctl" / "client").glob("[!_]*.py"))
        if path.stem not in HEAVY_CLIENT
    ]
    return rooms + client + [f"dspark_worker.{name}" for name in LIGHT_WORKER]


def test_the_light_rooms_import_without_typer_paramiko_rich_click_and_torch() -> None:
    names = light_modules()
    assert len(names) > 30
    program = _PROGRAM.format(banned=BANNED, names=names)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("banned", BANNED)
def test_the_ban_bites(banned: str) -> None:
    program = _PROGRAM.format(banned=BANNED, names=[banned])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert f"banned: {banned}" in done.stderr
