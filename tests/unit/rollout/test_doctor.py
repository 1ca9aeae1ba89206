"""A doctor's lines (issue 5, part 2): each fault has a line of its own that says what to do."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from dsparkctl.config.fleet import Fleet
from dsparkctl.rollout.doctor import (
    Finding,
    Verdict,
    host_findings,
    skew_findings,
    transfer_finding,
)

FLEET = Fleet.model_validate(
    {
        "version": 1,
        "hosts": {"x86host": {}, "spark-a": {}},
        "links": ({"host": "spark-a", "bind": "10.202.28.2", "peer": "10.202.28.1"},),
        "worker": {"host": "x86host", "checkpoint": "/c", "receipt": "/c/R", "device": "cuda:0"},
    },
    context={"folder": Path("/")},
)

GPU = {"name": "RTX 3090", "driver_version": "550", "compute_cap": "8.6", "memory.free": "23 GB"}

WELL: dict[str, Any] = {
    "echo": "dspark\n",
    "root": "sudo of deploy",
    "clock_off_s": 0.1,
    "python": [3, 11, 2],
    "machine": "x86_64",
    "memory": {"MemAvailable": 10**10},
    "memlock": [-1, -1],
    "gpus": [GPU],
    "interfaces": [
        {"name": "dA", "mtu": 9000, "is_up": True, "addresses": ["10.202.28.1", "10.202.28.2"]}
    ],
    "links": [{"route": {"dev": "dA"}, "reaches": True, "reaches_whole": True}],
    "rdma": [],
    "listeners": {},
    "folders": {
        "/opt/dspark": {"exists": False, "free_bytes": 10**11},
        "/c": {"exists": True, "free_bytes": 10**11},
        "/c/R": {"exists": True, "free_bytes": 10**11},
    },
}


def found(host: str = "x86host", **changed: Any) -> list[Finding]:
    return list(host_findings(FLEET, host, deepcopy(WELL) | changed))


def test_a_host_that_is_well_has_only_good_lines() -> None:
    for host in FLEET.hosts:
        lines = found(host)
        assert {line.verdict for line in lines} == {Verdict.OK}, lines
        assert all(line.host == host and line.seen and "\n" not in line.seen for line in lines)


def _link(**changed: Any) -> dict[str, Any]:
    return {"links": [WELL["links"][0] | changed]}


def _interface(**changed: Any) -> dict[str, Any]:
    return {"interfaces": [WELL["interfaces"][0] | changed]}


def _without(path: str) -> dict[str, Any]:
    return {"folders": WELL["folders"] | {path: {"exists": False, "free_bytes": 10**11}}}


@pytest.mark.parametrize(
    ("changed", "check", "verdict", "words"),
    [
        ({"echo": "welcome!\ndspark\n"}, "ssh", "fail", "not what it printed; let ~/.bashrc"),
        ({"python": [3, 10, 4]}, "python", "fail", "3.10.4; install Python 3.11"),
        ({"clock_off_s": -5.0}, "clock", "warn", "-5.0 s from here; run a time service"),
        ({"gpus": []}, "gpu", "fail", "cuda:0: 0 GPUs are seen; nvidia-smi there"),
        ({"listeners": {"18620": "users:((nc))"}}, "port", "fail", "18620 is taken; end it"),
        ({"memlock": [8 << 20, 8 << 20]}, "memlock", "warn", "8192 KiB"),
        (_without("/c"), "checkpoint", "fail", "/c is missing; dsparkctl deploy checkpoint"),
        (_without("/c/R"), "receipt", "fail", "/c/R is missing; dsparkctl deploy checkpoint"),
        (
            {"folders": WELL["folders"] | {"/opt/dspark": {"exists": True, "free_bytes": 10**9}}},
            *("disk", "warn", "1.0 GB free below /opt/dspark"),
        ),
        (_interface(addresses=[]), "link", "fail", "is no address of this host; ip addr add"),
        (_interface(is_up=False), "link", "fail", "dA is down; ip link set dA up"),
        (_interface(mtu=1500), "link", "fail", "has MTU 1500, expected 9000; ip link set dA mtu"),
        (_link(route={"dev": "eth0"}), "link", "fail", "is reached by eth0, not it; ip route add"),
        (_link(route=None), "link", "fail", "is reached by None, not it"),
        (_link(reaches=False), "link", "fail", "does not answer a ping; look at the cable"),
        (_link(reaches_whole=False), "link", "fail", "9000 bytes does not arrive whole; set MTU"),
        (
            {"rdma": [{"device": "mlx5_0", "gids": []}]},
            *("rdma", "warn", "mlx5_0: no RoCE v2 GID of a link's address"),
        ),
    ],
)
def test_each_fault_has_one_line_and_says_what_to_do(
    changed: dict[str, Any], check: str, verdict: str, words: str
) -> None:
    bad = [line for line in found(**changed) if line.verdict is not Verdict.OK]
    assert [(line.check.split()[0], line.verdict.value) for line in bad] == [(check, verdict)]
    assert words in f"{bad[0].seen}; {bad[0].todo}"
    assert bad[0].todo


def test_a_gid_is_found_by_address_and_never_by_index() -> None:
    """It moves: on one host it is 3, an hour later 4."""
    gid = "0000:0000:0000:0000:0000:ffff:0aca:1c01"
    gids = [
        {"port": "1", "index": "3", "gid": gid, "type": "IB/RoCE v1"},
        {"port": "1", "index": "4", "gid": gid, "type": "RoCE v2"},
    ]
    line = next(x for x in found(rdma=[{"device": "mlx5_0", "gids": gids}]) if x.check == "rdma")
    assert (line.verdict, line.seen) == (Verdict.OK, "mlx5_0 port 1, GID 4 (RoCE v2)")


@pytest.mark.parametrize(("gbit", "verdict"), [(9.0, "ok"), (4.9, "warn")])
def test_a_link_that_carries_half_of_what_it_should_is_told(gbit: float, verdict: str) -> None:
    spent = {n: n * 8 / gbit / 1e3 + 60 for n in (184_416, 614_400, 3_932_160)}
    median = {"0": 60.0} | {str(n): us for n, us in spent.items()}
    line = transfer_finding("spark-a", FLEET.links[0], median)
    assert line.verdict.value == verdict
    assert f"{gbit:.1f} Gbit/s, expected 10" in line.seen


def test_versions_that_differ_are_told() -> None:
    lines = list(skew_findings({"a": "0.1.0", "b": "0.0.9"}, "0.1.0"))
    assert [line.verdict.value for line in lines] == ["ok", "warn"]


@pytest.mark.parametrize("role", ["answer", "ask"])
def test_a_transfer_with_nobody_at_the_far_end_says_so(
    role: str, run_program: Callable[..., tuple[int, str, str]]
) -> None:
    asked = {"role": role, "address": "192.0.2.1", "port": 1, "bind": "192.0.2.2", "sizes": []}
    code, _, said = run_program("link_end", asked, TIMEOUT_S=0.2)
    assert code == 1
    assert said.startswith("192.0.2.1 port 1: ")
