"""Memory, the limit on locked memory, and the worker's unit as systemd has it."""

from __future__ import annotations

import resource

from dsparkctl.rollout.doctor.collector.tools import read, run

_SHOWN = "LoadState,ActiveState,MainPID,LimitMEMLOCK,MemoryCurrent"


def memory(root: str) -> dict[str, int]:
    """Bytes by the kernel's own words: MemTotal and MemAvailable."""
    lines = (read(root + "/proc/meminfo") or "").splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if ":" in line}
    return {"total_bytes": found["MemTotal"], "available_bytes": found["MemAvailable"]}


def memlock_bytes() -> int | None:
    """What a process of this account may lock; None: no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def unit(name: str | None) -> dict[str, object] | None:
    """The unit, when it was asked for and systemd knows it."""
    if name is None:
        return None
    said = run(["systemctl", "show", name, "--property=" + _SHOWN], 10)
    found = dict(line.split("=", 1) for line in said.out.splitlines() if "=" in line)
    if found.get("LoadState") != "loaded":
        return None
    return {
        "active": found.get("ActiveState", ""),
        "pid": _number(found.get("MainPID")) or None,
        "memlock_bytes": _number(found.get("LimitMEMLOCK")),
        "memory_bytes": _number(found.get("MemoryCurrent")) or 0,
    }


def _number(text: str | None) -> int | None:
    """None for `infinity` and `[not set]`."""
    return int(text) if text is not None and text.isdigit() and len(text) < 20 else None
