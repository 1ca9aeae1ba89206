"""Unit and configuration as files (issue 5, part 2): what depends on dspark.yaml, and only that."""

from pathlib import Path
from typing import Any

import pytest

from dsparkctl.config.fleet import Fleet
from dsparkctl.config.source import parse_fleet
from dsparkctl.rollout.inventory import inventory
from dsparkctl.rollout.render import RenderError, worker_config, worker_unit
from dsparkctl.rollout.wheelhouse import Wheel


def fleet(**worker: Any) -> Fleet:
    given = {"host": "x", "checkpoint": "/srv/c", "receipt": "/srv/c/R",
             "listen": "tcp://10.202.28.1:18620"}  # fmt: skip
    return Fleet.model_validate(
        {
            "version": 1,
            "hosts": {"x": {"user": "ops", "port": 2222, "jump": "gate"}, "a": {}},
            "links": ({"host": "a", "bind": "10.202.28.2", "peer": "10.202.28.1"},),
            "worker": given | worker,
        },
        context={"folder": Path("/")},
    )


def unit(**worker: Any) -> list[str]:
    return worker_unit(fleet(**worker)).decode().splitlines()


def test_the_configuration_is_a_whole_dspark_yaml_that_the_worker_reads() -> None:
    text = worker_config(fleet(max_slots=3))
    found = parse_fleet(text, Path("/opt/dspark/current/dspark.yaml")).worker
    assert found.max_slots == 3
    assert str(found.hash_cache) == "/opt/dspark/shared/hashes.json"
    assert found.wait_for_address_s == 86_400
    assert found.host is None


@pytest.mark.parametrize("key", ["checkpoint", "receipt", "markov"])
def test_a_path_that_is_none_of_the_hosts_is_refused(key: str) -> None:
    with pytest.raises(RenderError, match=f"worker.{key}: x is not absolute"):
        worker_config(fleet().model_copy(update={"worker": fleet().worker.model_copy(
            update={key: Path("x")})}))  # fmt: skip


def test_a_carrier_that_no_deploy_brings_is_refused_before_anything_is_touched() -> None:
    with pytest.raises(RenderError, match=r"worker.listen: o1tcp://.*a deploy brings tcp:// alone"):
        worker_config(fleet(listen="o1tcp://10.202.28.1:18620"))


@pytest.mark.parametrize("key", ["hash_cache", "record"])
def test_what_the_worker_writes_lies_where_its_unit_lets_it_write(key: str) -> None:
    assert worker_config(fleet(**{key: "/opt/dspark/shared/x"}))
    for path in ("/var/lib/x", "x", "/opt/dspark/sharedx"):
        with pytest.raises(RenderError, match=f"worker.{key}: .*below /opt/dspark/shared"):
            worker_config(fleet(**{key: path}))


def test_a_unit_leaves_no_placeholder_and_needs_no_network_to_be_up() -> None:
    text = "\n".join(unit())
    assert "@" not in text.replace("@system-service", "").replace("@privileged @resources", "")
    assert "network-online" not in text
    for line in ("Type=notify", "Restart=on-failure", "RestartPreventExitStatus=2 10",
                 "WatchdogSec=30", "LimitMEMLOCK=infinity", "User=dspark"):  # fmt: skip
        assert line in unit()


def test_ports_and_peers_are_the_named_ones() -> None:
    lines = unit(admin=("tcp://127.0.0.1:18630",))
    assert [line for line in lines if line.startswith("SocketBind")] == [
        "SocketBindDeny=any",
        "SocketBindAllow=tcp:18620",
        "SocketBindAllow=tcp:18630",
    ]
    assert "IPAddressAllow=localhost 10.202.28.1 10.202.28.2" in lines
    assert "IPAddressAllow=any" in unit(admin=("tcp://192.168.1.5:18630",))


def test_a_gpu_needs_its_devices_and_a_cpu_none() -> None:
    assert "PrivateDevices=yes" in unit()
    gpu = unit(device="cuda:0")
    assert "PrivateDevices=yes" not in gpu
    assert "DeviceAllow=char-nvidia* rw" in gpu


def test_a_checkpoint_in_a_home_can_be_read_and_other_homes_are_hidden() -> None:
    assert "ProtectHome=yes" in unit()
    assert "ProtectHome=read-only" in unit(checkpoint="/home/me/c")


def test_an_inventory_has_the_very_bytes_of_a_deploy_and_one_name_for_one_content() -> None:
    wheels = (
        Wheel(Path("/w/dsparkctl-0.1.0-py3-none-any.whl"), "a" * 64, 1),
        Wheel(Path("/w/torch-2.13.0-cp311-cp311-linux_x86_64.whl"), "b" * 64, 1),
    )
    found = inventory(fleet(), wheels, 1_700_000_000.0, None)
    given = found["dspark_worker"]["vars"]
    assert given["dspark_unit_text"].encode() == worker_unit(fleet())
    assert given["dspark_config_text"].encode() == worker_config(fleet())
    assert given["dspark_release"].startswith("20231114T221320-")
    assert inventory(fleet(), wheels, 1_700_000_000.0, None) == found
    assert found["_meta"]["hostvars"]["x"] == {
        "ansible_host": "x",
        "ansible_become": True,
        "ansible_python_interpreter": "/usr/bin/python3",
        "ansible_user": "ops",
        "ansible_port": 2222,
        "ansible_ssh_common_args": "-J gate",
    }
    assert found["dspark_client"]["hosts"] == []
