"""Asks every room of the collector; what one of them cannot find out hides nothing of the others.

`--root` stands before every path below /proc and /sys, so that a test can show what no machine at
hand has.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any, Callable  # noqa: UP035 -- Python 3.9

from dsparkctl.rollout.doctor.collector import (
    fabric,
    gpu,
    network,
    ports,
    rdma,
    software,
    storage,
    system,
)

MARK = "\n---- dsparkctl doctor ----\n"
"""Stands before the object, so that whatever a shell prints at login can be told apart."""


def collect(root: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Every observation by its name; None, and a line in `errors`, for one that failed."""
    look: dict[str, Callable[[], object]] = {
        "memory": lambda: system.memory(root),
        "memlock_bytes": system.memlock_bytes,
        "unit": lambda: system.unit(asked["unit"]),
        "interpreters": lambda: software.interpreters(asked["interpreters"]),
        "installed": lambda: software.installed(asked["installed"]),
        "gpus": gpu.gpus,
        "gpu_driver": lambda: gpu.driver(root),
        "disks": lambda: storage.disks(asked["disks"]),
        "receipt": lambda: storage.receipt(asked["receipt"]),
        "checkpoint": lambda: storage.folder(asked["checkpoint"]),
        "ports": lambda: ports.holders(root, asked["ports"]),
        "free_ports": lambda: ports.free_ports(asked["transfer_addresses"]),
        "interfaces": lambda: network.interfaces(root),
        "routes": lambda: network.routes(asked["links"]),
        "pings": lambda: network.pings(asked["links"]),
        "rdma": lambda: rdma.devices(root),
        "libfabric": lambda: fabric.libfabric(root),
    }
    errors: dict[str, str] = {}
    seen: dict[str, Any] = {
        "clock_s": time.time(),
        "python": list(sys.version_info[:3]),
        "is_root": os.geteuid() == 0,
        "errors": errors,
    }
    for name, ask in look.items():
        try:
            seen[name] = ask()
        except Exception as error:  # whatever it was, the operator wants the rest
            seen[name] = None
            errors[name] = (f"{type(error).__name__}: {error}").splitlines()[0][:300]
    return seen


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default="")
    parser.add_argument("asked", type=json.loads)
    given = parser.parse_args()
    sys.stdout.write(MARK + json.dumps(collect(given.root.rstrip("/"), given.asked)) + "\n")


if __name__ == "__main__":
    main()
