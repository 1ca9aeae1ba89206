"""doctor's check of RDMA (issue 5 §2; §5): a GID by address, never pinned."""

from dataclasses import replace
from typing import Any

from dsparkctl.rollout.doctor.checks.rdma import rdma
from tests.unit.rollout.doctor.seeing import lines, seen, spark

WANTED = replace(spark(), scheme="o1rdma")
GID = {"index": 3, "address": "10.202.28.2", "kind": "RoCE v2", "interface": "enp1s0"}
DEVICE = {"device": "mlx5_0", "port": 1, "state": "ACTIVE", "rate": "100 Gb/sec", "gids": [GID]}


def test_the_gid_that_stands_for_our_address_now() -> None:
    assert lines(rdma(WANTED, seen(rdma=[DEVICE]))) == [
        "ok spark-a rdma: 10.202.28.2 is GID 3 of mlx5_0 port 1 (RoCE v2) now, 100 Gb/sec"
    ]


def test_no_device_matters_only_to_who_wants_one() -> None:
    assert lines(rdma(spark(), seen(rdma=[]))) == [
        "ok spark-a rdma: no device, and none is needed: the endpoint is tcp"
    ]
    assert lines(rdma(WANTED, seen(rdma=[]))) == [
        "warn spark-a rdma: no device in /sys/class/infiniband -> load the driver (modprobe"
        " mlx5_ib), or use a tcp:// endpoint"
    ]


def test_a_gid_of_the_first_roce_or_of_another_address_is_none() -> None:
    todo = " -> give the address to the device's interface; pin no GID index"
    first: dict[str, Any] = DEVICE | {"gids": [GID | {"kind": "IB/RoCE v1"}]}
    assert lines(rdma(WANTED, seen(rdma=[first]))) == [
        f"warn spark-a rdma: 10.202.28.2 is no RoCE v2 GID of mlx5_0, only as IB/RoCE v1{todo}"
    ]
    other: dict[str, Any] = DEVICE | {"gids": [GID | {"address": "10.0.0.4"}]}
    assert lines(rdma(WANTED, seen(rdma=[other]))) == [
        f"warn spark-a rdma: 10.202.28.2 is no RoCE v2 GID of mlx5_0{todo}"
    ]
    assert lines(rdma(spark(), seen(rdma=[other]))) == [
        "ok spark-a rdma: 10.202.28.2 is no RoCE v2 GID of mlx5_0; not needed: the endpoint is tcp"
    ]


def test_a_port_that_is_down() -> None:
    assert lines(rdma(WANTED, seen(rdma=[DEVICE | {"state": "DOWN"}]))) == [
        "warn spark-a rdma: 10.202.28.2 is GID 3 of mlx5_0 port 1 (RoCE v2) now, 100 Gb/sec, but"
        " the port is DOWN -> check the cable at enp1s0"
    ]
