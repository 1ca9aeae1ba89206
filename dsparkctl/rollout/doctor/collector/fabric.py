"""libfabric as this host has it: its version, its providers, and what builds the shim."""

from __future__ import annotations

import ctypes
import os
import shutil

from dsparkctl.rollout.doctor.collector.tools import run

MAX_PROVIDERS = 64


def libfabric(root: str) -> dict[str, object]:
    """`version` is None where it cannot be loaded; `providers` where nothing lists them."""
    return {
        "version": _version(),
        "providers": _providers(),
        "has_headers": os.access(root + "/usr/include/rdma/fabric.h", os.R_OK),
        "has_compiler": shutil.which("cc") is not None,
    }


def _version() -> str | None:
    try:
        number = int(ctypes.CDLL("libfabric.so.1").fi_version())
    except (OSError, AttributeError):
        return None
    return str(number >> 16) + "." + str(number & 0xFFFF)


def _providers() -> list[str] | None:
    """Those that offer connections, which is what o1tcp and o1rdma speak through."""
    said = run(["fi_info", "-t", "FI_EP_MSG"], 20)
    if said.code:
        return None
    lines = [line.partition(": ") for line in said.out.splitlines()]
    found = {value.strip()[:40] for key, _, value in lines if key.strip() == "provider"}
    return sorted(found)[:MAX_PROVIDERS]
