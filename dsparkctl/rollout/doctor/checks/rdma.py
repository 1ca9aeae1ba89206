"""RDMA over the link: a device, and the GID that stands for our address now (§5)."""

from collections.abc import Iterator
from typing import Final

from dsparkctl.rollout.doctor.finding import Finding, ok, warn
from dsparkctl.rollout.doctor.observations import Seen
from dsparkctl.rollout.doctor.part import End, Part

ROCE_V2: Final = "RoCE v2"
ACTIVE: Final = "ACTIVE"


def rdma(part: Part, seen: Seen) -> Iterator[Finding]:
    if seen.rdma is None or not part.ends:
        return
    if not seen.rdma:
        if part.wants_rdma:
            todo = "load the driver (modprobe mlx5_ib), or use a tcp:// endpoint"
            yield warn(part.host, "rdma", "no device in /sys/class/infiniband", todo)
        else:
            yield ok(part.host, "rdma", "no device, and none is needed: the endpoint is tcp")
        return
    for end in part.ends:
        yield _gid(part, seen, end)


def _gid(part: Part, seen: Seen, end: End) -> Finding:
    assert seen.rdma is not None
    for port in seen.rdma:
        for gid in port.gids:
            if gid.address == end.own and gid.kind == ROCE_V2:
                at = f"{port.device} port {port.port}"
                said = f"{end.own} is GID {gid.index} of {at} ({ROCE_V2}) now, {port.rate}"
                if port.state == ACTIVE:
                    return ok(part.host, "rdma", said)
                said = f"{said}, but the port is {port.state or 'in no known state'}"
                return _wanted(part, said, f"check the cable at {gid.interface}")
    kinds = {gid.kind for port in seen.rdma for gid in port.gids if gid.address == end.own}
    devices = ", ".join(sorted({port.device for port in seen.rdma}))
    only = f", only as {', '.join(sorted(kinds))}" if kinds else ""
    said = f"{end.own} is no {ROCE_V2} GID of {devices}{only}"
    return _wanted(part, said, "give the address to the device's interface; pin no GID index")


def _wanted(part: Part, said: str, todo: str) -> Finding:
    if part.wants_rdma:
        return warn(part.host, "rdma", said, todo)
    return ok(part.host, "rdma", f"{said}; not needed: the endpoint is tcp")
