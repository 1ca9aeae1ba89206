"""Driver and GPU: what worker.device names, and what a Spark's engine will look for."""

from collections.abc import Iterator
from typing import Final

from dsparkctl.rollout.doctor.checks.system import checkpoint_bytes
from dsparkctl.rollout.doctor.finding import Finding, fail, ok, warn
from dsparkctl.rollout.doctor.observations import Gpu, Seen
from dsparkctl.rollout.doctor.part import Part
from dsparkctl.rollout.doctor.words import gib

OLDEST: Final = (7, 5)
"""Compute capability that current builds of torch still carry kernels for."""
BFLOAT16: Final = (8, 0)
RUNTIME_BYTES: Final = 1 << 30
"""A CUDA context, windows, buffers, captured graphs."""


def gpu(part: Part, seen: Seen) -> Iterator[Finding]:
    if part.worker is not None and part.worker.device == "cpu":
        yield ok(part.host, "gpu", "none is needed, worker.device is cpu")
    elif seen.gpus is not None and not seen.gpus.list:
        yield _none(part, seen)
    elif seen.gpus is not None and part.worker is not None:
        yield _workers(part, seen)
    elif seen.gpus is not None and part.is_spark:
        yield ok(part.host, "gpu", "; ".join(map(_said, seen.gpus.list[:8])))


def _none(part: Part, seen: Seen) -> Finding:
    assert seen.gpus is not None
    said = f"no GPU: {seen.gpus.error}"
    if seen.gpu_driver:
        todo = f"install the tools that belong to the loaded driver ({seen.gpu_driver})"
    elif seen.gpus.is_missing:
        todo = "install NVIDIA's driver, and see nvidia-smi list the GPU"
    else:
        todo = "see what nvidia-smi and dmesg say; after an update of the driver, reboot"
    if part.worker is not None:
        return fail(part.host, "gpu", said, f"{todo}; or set worker.device: cpu")
    return warn(part.host, "gpu", said, todo)


def _workers(part: Part, seen: Seen) -> Finding:
    assert seen.gpus is not None
    assert part.worker is not None
    device = part.worker.device
    index = int(device.removeprefix("cuda:"))
    found = next((one for one in seen.gpus.list if one.index == index), None)
    if found is None:
        n = len(seen.gpus.list)
        todo = f"set worker.device to one of cuda:0 to cuda:{n - 1}"
        return fail(part.host, "gpu", f"{device}: there are {n} GPUs", todo)
    said, capability = f"{device} is {_said(found)}", _capability(found)
    if capability < OLDEST:
        return fail(part.host, "gpu", f"{said}; 7.5 is needed", "use another GPU, or the cpu")
    need_bytes = RUNTIME_BYTES + (part.worker.weight_cache_mb << 20) + checkpoint_bytes(seen)
    if found.total_bytes is not None and found.total_bytes < need_bytes:
        todo = "lower worker.weight_cache_mb"
        return fail(part.host, "gpu", f"{said}; the worker takes about {gib(need_bytes)}", todo)
    is_serving = seen.unit is not None and seen.unit.pid is not None
    if not is_serving and found.free_bytes is not None and found.free_bytes < need_bytes:
        busy = f"{said}, {gib(found.free_bytes)} free; the worker takes about {gib(need_bytes)}"
        return warn(part.host, "gpu", busy, "see with nvidia-smi who holds the rest, and end it")
    if capability < BFLOAT16 and part.worker.dtype in (None, "bfloat16"):
        todo = "set worker.dtype: float32"
        return warn(part.host, "gpu", f"{said}, which has no bfloat16 of its own", todo)
    return ok(part.host, "gpu", said)


def _capability(gpu: Gpu) -> tuple[int, ...]:
    """(0,) when it is not two numbers."""
    numbers = gpu.compute.split(".")
    return tuple(map(int, numbers)) if all(map(str.isdigit, numbers)) else (0,)


def _said(gpu: Gpu) -> str:
    held = "memory shared with the host" if gpu.total_bytes is None else gib(gpu.total_bytes)
    return f"{gpu.name}, compute capability {gpu.compute}, {held}, driver {gpu.driver}"
