"""The collector on this machine, and with roots that show what it does not have (issue 5 §2)."""

import ast
import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dsparkctl import CONTRACT_VERSION, __version__
from dsparkctl.rollout.doctor.collector.gpu import driver, gpus
from dsparkctl.rollout.doctor.collector.network import interfaces
from dsparkctl.rollout.doctor.collector.ports import holders
from dsparkctl.rollout.doctor.collector.rdma import devices
from dsparkctl.rollout.doctor.collector.run import MARK
from dsparkctl.rollout.doctor.collector.storage import disks, folder, receipt
from dsparkctl.rollout.doctor.collector.tools import run
from dsparkctl.rollout.doctor.observations import Seen
from dsparkctl.rollout.parcel import parcel
from tests.unit.rollout.local import fake_command

ROOT = Path(__file__).parents[4]
ROOM = "dsparkctl.rollout.doctor.collector"


def asked(**other: Any) -> dict[str, Any]:
    nothing: dict[str, Any] = {
        "unit": None,
        "interpreters": [],
        "installed": [],
        "disks": [],
        "receipt": None,
        "checkpoint": None,
        "ports": [],
        "transfer_addresses": [],
        "links": [],
    }
    return nothing | other


def collected(python: str, *options: str, **other: Any) -> Seen:
    """What the real program says, fed to a Python as it is on a host."""
    program = parcel(f"{ROOM}.run", (ROOM,), oldest=(3, 9))
    command = [python, "-I", "-", *options, json.dumps(asked(**other))]
    done = subprocess.run(command, input=program, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return Seen.model_validate_json(done.stdout.rpartition(MARK.encode())[2])


def pythons() -> list[str]:
    """Ours, and where one runs, the oldest that the collector may meet."""
    oldest = shutil.which("python3.9")
    runs = oldest and not subprocess.run([oldest, "-c", ""], capture_output=True).returncode
    return [sys.executable, *([oldest] if oldest and runs else [])]


@pytest.mark.parametrize(
    "path",
    [
        *sorted((ROOT / "dsparkctl/rollout/doctor/collector").glob("*.py")),
        ROOT / "dsparkctl/rollout/doctor/transfer_program.py",
        *(ROOT / "dsparkctl" / name / "__init__.py" for name in (".", "rollout", "rollout/doctor")),
    ],
    ids=lambda path: "/".join(path.parts[-2:]),
)
def test_what_travels_is_python_3_9_and_standard_library(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [one.name for one in node.names]
            if isinstance(node, ast.Import)
            else []
        )
    }
    assert imported <= sys.stdlib_module_names | {"dsparkctl"}
    ours = [
        node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dsparkctl")
    ]
    assert set(ours) <= {ROOM, f"{ROOM}.tools"}


@pytest.mark.parametrize("python", pythons())
def test_it_looks_at_this_machine(python: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        seen = collected(
            python,
            interpreters=[sys.executable, "/no/python"],
            installed=[{"place": "worker", "python": sys.executable, "folder": str(ROOT)}],
            disks=[str(tmp_path / "not" / "yet")],
            receipt=str(tmp_path / "config.json"),
            checkpoint=str(tmp_path),
            ports=[port],
            transfer_addresses=["127.0.0.1", "192.0.2.77"],
        )
    assert seen.errors == {}
    assert seen.memory
    assert 0 < seen.memory.available_bytes <= seen.memory.total_bytes
    assert seen.interpreters
    assert seen.interpreters["/no/python"] is None
    ours = seen.interpreters[sys.executable]
    assert ours
    assert ours.version == sys.version_info[:3]
    assert seen.installed
    installed = seen.installed["worker"]
    assert installed
    assert (installed.version, installed.contract) == (__version__, CONTRACT_VERSION)
    assert seen.disks
    disk = seen.disks[str(tmp_path / "not" / "yet")]
    assert disk.at == str(tmp_path)
    assert disk.free_bytes > 0
    assert seen.receipt
    assert seen.receipt.content == "e30="
    assert seen.checkpoint
    assert seen.checkpoint.sizes == {"config.json": 2, "gone": None}
    assert seen.ports
    assert (seen.ports[0].address, seen.ports[0].port) == ("127.0.0.1", port)
    assert seen.ports[0].pid is not None, "a process of our own account"
    assert seen.free_ports
    assert list(seen.free_ports) == ["127.0.0.1"]
    assert seen.interface_of("127.0.0.1")


def test_one_room_that_fails_hides_nothing_of_the_others(tmp_path: Path) -> None:
    seen = collected(sys.executable, "--root", str(tmp_path), disks=["/"])
    assert seen.memory is None
    assert seen.errors["memory"].startswith("KeyError: ")
    assert seen.disks
    assert seen.disks["/"].free_bytes > 0
    assert seen.rdma == ()


def test_a_python_that_is_too_old_says_so_in_one_line() -> None:
    program = parcel(f"{ROOM}.run", (ROOM,), oldest=(9, 9))
    done = subprocess.run([sys.executable, "-I", "-"], input=program, capture_output=True)
    assert done.returncode == 1
    assert done.stderr.decode().rstrip().endswith("is too old here: 9.9 is needed")
    assert done.stderr.count(b"\n") == 1


def test_gids_are_found_by_address(tmp_path: Path) -> None:
    """§5: RoCE v2, by the IPv4 address; an index means something only now."""
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    for name, text in {
        "state": "4: ACTIVE\n",
        "rate": "100 Gb/sec (4X EDR)\n",
        "gids/0": "fe80:0000:0000:0000:0202:c9ff:fe00:0001\n",
        "gids/2": "0000:0000:0000:0000:0000:ffff:0aca:1c02\n",
        "gids/10": "0000:0000:0000:0000:0000:ffff:0aca:1c02\n",
        "gid_attrs/types/2": "IB/RoCE v1\n",
        "gid_attrs/types/10": "RoCE v2\n",
        "gid_attrs/ndevs/10": "enp1s0\n",
    }.items():
        (port / name).parent.mkdir(parents=True, exist_ok=True)
        (port / name).write_text(text)
    (found,) = devices(str(tmp_path))
    assert (found["device"], found["port"], found["state"]) == ("mlx5_0", 1, "ACTIVE")
    assert found["rate"] == "100 Gb/sec (4X EDR)"
    assert found["gids"] == [
        {"index": 2, "address": "10.202.28.2", "kind": "IB/RoCE v1", "interface": ""},
        {"index": 10, "address": "10.202.28.2", "kind": "RoCE v2", "interface": "enp1s0"},
    ]


def test_gpus_as_nvidia_smi_lists_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "echo '0, NVIDIA GB10, 580.95.05, 12.1, [N/A], [N/A]'"
    said += "; echo '1, RTX 3090, 580.95.05, 8.6, 24576, 24000'"
    monkeypatch.setenv("PATH", fake_command(tmp_path / "bin", "nvidia-smi", said))
    found = gpus()
    assert found["error"] is None
    assert found["list"] == [
        {
            "index": 0,
            "name": "NVIDIA GB10",
            "driver": "580.95.05",
            "compute": "12.1",
            "total_bytes": None,
            "free_bytes": None,
        },
        {
            "index": 1,
            "name": "RTX 3090",
            "driver": "580.95.05",
            "compute": "8.6",
            "total_bytes": 24576 << 20,
            "free_bytes": 24000 << 20,
        },
    ]


def test_a_driver_without_working_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18"
    monkeypatch.setenv("PATH", fake_command(tmp_path / "bin", "nvidia-smi", said))
    assert gpus() == {
        "list": [],
        "error": "Failed to initialize NVML: Driver/library version mismatch",
        "is_missing": False,
    }
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX 580.95.05\nGCC version\n")
    assert driver(str(tmp_path)) == "NVRM version: NVIDIA UNIX 580.95.05"
    assert driver(str(tmp_path / "elsewhere")) is None


def test_a_holder_is_found_through_its_descriptors_and_its_unit_through_its_cgroup(
    tmp_path: Path,
) -> None:
    table = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
        "   0: 011CCA0A:48BC 00000000:0000 0A 00000000:00000000 00:00000000 00000000   999"
        "        0 4711 1 0000000000000000 100 0 0 10 0\n"
        "   1: 011CCA0A:48BC 021CCA0A:D431 01 00000000:00000000 00:00000000 00000000   999"
        "        0 4712 1 0000000000000000 100 0 0 10 0\n"
    )
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/tcp").write_text(table)
    process = tmp_path / "proc/77"
    (process / "fd").mkdir(parents=True)
    (process / "fd/5").symlink_to("socket:[4711]")
    (process / "cmdline").write_bytes(b"python\0-m\0dspark_worker\0")
    (process / "cgroup").write_text("0::/system.slice/dspark-worker.service\n")
    assert holders(str(tmp_path), [18620]) == [
        {
            "address": "10.202.28.1",
            "port": 18620,
            "pid": 77,
            "command": "python -m dspark_worker",
            "unit": "dspark-worker.service",
        }
    ]
    assert holders(str(tmp_path), [18630]) == []


def test_the_speed_of_an_interface_is_the_drivers_word(tmp_path: Path) -> None:
    at = tmp_path / "sys/class/net/lo"
    at.mkdir(parents=True)
    (at / "speed").write_text("200000\n")
    (found,) = [one for one in interfaces(str(tmp_path)) if one["name"] == "lo"]
    assert found["speed_mbit"] == 200_000
    (at / "speed").write_text("-1\n")
    (found,) = [one for one in interfaces(str(tmp_path)) if one["name"] == "lo"]
    assert found["speed_mbit"] is None


def test_files_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    assert receipt(gone) == {"content": None, "error": "No such file or directory"}
    assert folder(gone) == {"sizes": {}, "error": "No such file or directory"}
    assert disks([gone])[gone]["at"] == str(tmp_path)  # type: ignore[index]


def test_a_command_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", fake_command(tmp_path / "bin", "hang", "exec sleep 60"))
    assert run(["hang"], 0.2).code == 124
