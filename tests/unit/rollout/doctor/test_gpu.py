"""doctor's check of driver and GPU (issue 5 §2)."""

from typing import Any

import pytest

from dsparkctl.rollout.doctor.checks.gpu import gpu
from tests.unit.rollout.doctor.seeing import lines, seen, spark, worker

GIB = 1 << 30
CARD = {
    "index": 0,
    "name": "NVIDIA GeForce RTX 3090",
    "driver": "580.95.05",
    "compute": "8.6",
    "total_bytes": 24 * GIB,
    "free_bytes": 23 * GIB,
}
SAID = "NVIDIA GeForce RTX 3090, compute capability {}, {} GiB, driver 580.95.05"


def cards(**other: Any) -> dict[str, Any]:
    return {"gpus": {"list": [CARD | other], "error": None, "is_missing": False}}


def none(error: str, *, is_missing: bool) -> dict[str, Any]:
    return {"gpus": {"list": [], "error": error, "is_missing": is_missing}}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (cards(), f"ok x86host gpu: cuda:0 is {SAID.format('8.6', '24.0')}"),
        (
            cards(index=1),
            "fail x86host gpu: cuda:0: there are 1 GPUs"
            " -> set worker.device to one of cuda:0 to cuda:0",
        ),
        (
            cards(compute="6.1"),
            f"fail x86host gpu: cuda:0 is {SAID.format('6.1', '24.0')}; 7.5 is needed"
            " -> use another GPU, or the cpu",
        ),
        (
            cards(compute="7.5"),
            f"warn x86host gpu: cuda:0 is {SAID.format('7.5', '24.0')}, which has no bfloat16 of"
            " its own -> set worker.dtype: float32",
        ),
        (
            cards(total_bytes=6 * GIB),
            f"fail x86host gpu: cuda:0 is {SAID.format('8.6', '6.0')}; the worker takes about"
            " 7.0 GiB -> lower worker.weight_cache_mb",
        ),
        (
            cards(free_bytes=2 * GIB),
            f"warn x86host gpu: cuda:0 is {SAID.format('8.6', '24.0')}, 2.0 GiB free; the worker"
            " takes about 7.0 GiB -> see with nvidia-smi who holds the rest, and end it",
        ),
        (
            none("nvidia-smi: no such command", is_missing=True),
            "fail x86host gpu: no GPU: nvidia-smi: no such command -> install NVIDIA's driver, and"
            " see nvidia-smi list the GPU; or set worker.device: cpu",
        ),
        (
            none("Driver/library version mismatch", is_missing=False),
            "fail x86host gpu: no GPU: Driver/library version mismatch -> see what nvidia-smi and"
            " dmesg say; after an update of the driver, reboot; or set worker.device: cpu",
        ),
        (
            {**none("x", is_missing=True), "gpu_driver": "NVRM version 580"},
            "fail x86host gpu: no GPU: x -> install the tools that belong to the loaded driver"
            " (NVRM version 580); or set worker.device: cpu",
        ),
    ],
)
def test_the_workers_gpu(found: dict[str, Any], said: str) -> None:
    assert lines(gpu(worker(), seen(**found))) == [said]


def test_memory_that_the_serving_worker_holds_is_no_reason_to_warn() -> None:
    unit = {"active": "active", "pid": 7, "memlock_bytes": None, "memory_bytes": 0}
    found = seen(unit=unit, **cards(free_bytes=2 * GIB))
    assert lines(gpu(worker(), found))[0].startswith("ok")


def test_a_worker_on_the_cpu_needs_none() -> None:
    found = seen(**none("nvidia-smi: no such command", is_missing=True))
    assert lines(gpu(worker(cuda_0="cpu"), found)) == [
        "ok x86host gpu: none is needed, worker.device is cpu"
    ]


def test_a_sparks_gpu_is_the_engines_business() -> None:
    """A Spark's GPU has no memory of its own."""
    found = cards(name="NVIDIA GB10", compute="12.1", total_bytes=None, free_bytes=None)
    assert lines(gpu(spark(), seen(**found))) == [
        "ok spark-a gpu: NVIDIA GB10, compute capability 12.1, memory shared with the host, driver"
        " 580.95.05"
    ]
    missing = lines(gpu(spark(), seen(**none("gone", is_missing=False))))
    assert missing == [
        "warn spark-a gpu: no GPU: gone -> see what nvidia-smi and dmesg say; after an update of"
        " the driver, reboot"
    ]
