"""The GPUs as nvidia-smi lists them, and the driver as the kernel has it."""

from __future__ import annotations

from dsparkctl.rollout.doctor.collector.tools import read, run

_ASKED = "index,name,driver_version,compute_cap,memory.total,memory.free"
MAX_GPUS = 64


def gpus() -> dict[str, object]:
    """`list` of GPUs, or in `error` why there is none."""
    said = run(["nvidia-smi", "--query-gpu=" + _ASKED, "--format=csv,noheader,nounits"], 20)
    if said.code:
        return {"list": [], "error": said.reason, "is_missing": said.code == 127}
    rows = [[cell.strip() for cell in line.split(",")] for line in said.out.splitlines()]
    found = [_gpu(row) for row in rows[:MAX_GPUS] if len(row) == 6]
    return {"list": found, "error": None if found else said.reason, "is_missing": False}


def driver(root: str) -> str | None:
    """The first line of the loaded kernel module's own words."""
    text = read(root + "/proc/driver/nvidia/version")
    return text.splitlines()[0][:200] if text else None


def _gpu(row: list[str]) -> dict[str, object]:
    """Memory is None where it is the machine's own (a Spark's says [N/A])."""
    return {
        "index": int(row[0]),
        "name": row[1][:100],
        "driver": row[2][:40],
        "compute": row[3][:10],
        "total_bytes": _mib(row[4]),
        "free_bytes": _mib(row[5]),
    }


def _mib(text: str) -> int | None:
    return int(text) << 20 if text.isdigit() else None
