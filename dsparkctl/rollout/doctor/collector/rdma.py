"""RDMA devices with their ports and GIDs, as sysfs has them.

The table of GIDs changes while a machine runs, so an index means something only now.
"""

from __future__ import annotations

import ipaddress
import os

from dsparkctl.rollout.doctor.collector.tools import read

MAX_DEVICES = 32
MAX_GIDS = 256


def devices(root: str) -> list[dict[str, object]]:
    """Each port of each device; empty where there is none."""
    top = root + "/sys/class/infiniband"
    found = []
    for device in _names(top)[:MAX_DEVICES]:
        for port in _names(top + "/" + device + "/ports"):
            at = top + "/" + device + "/ports/" + port
            found.append(
                {
                    "device": device,
                    "port": int(port),
                    "state": (read(at + "/state") or "").rpartition(": ")[2][:40],
                    "rate": (read(at + "/rate") or "")[:60],
                    "gids": _gids(at),
                }
            )
    return found


def _gids(at: str) -> list[dict[str, object]]:
    """Those that stand for an IPv4 address, with their kind."""
    found = []
    for index in sorted(_names(at + "/gids"), key=int)[:MAX_GIDS]:
        address = _ipv4(read(at + "/gids/" + index) or "")
        if address is not None:
            found.append(
                {
                    "index": int(index),
                    "address": address,
                    "kind": (read(at + "/gid_attrs/types/" + index) or "")[:40],
                    "interface": (read(at + "/gid_attrs/ndevs/" + index) or "")[:40],
                }
            )
    return found


def _ipv4(gid: str) -> str | None:
    try:
        mapped = ipaddress.IPv6Address(gid).ipv4_mapped
    except ValueError:
        return None
    return None if mapped is None else str(mapped)


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return []
