"""Python, memory, and how much of it may be locked."""

from collections.abc import Iterator
from typing import Final

from dsparkctl.rollout.doctor.finding import Finding, fail, ok, warn
from dsparkctl.rollout.doctor.observations import Seen
from dsparkctl.rollout.doctor.part import Part
from dsparkctl.rollout.doctor.words import gib, version
from dsparkctl.rollout.layout import UNIT

OLDEST: Final = (3, 11)
"""The Python that our distribution needs."""

RUNTIME_BYTES: Final = 1 << 30
"""An interpreter with torch."""
SPARK_SPARE_BYTES: Final = 1 << 30
PINNED_BYTES: Final = 64 << 20
"""Rings and messages that RDMA pins: max_req_bytes and max_resp_bytes, both ends, with room."""


def python(part: Part, seen: Seen) -> Iterator[Finding]:
    for path in part.interpreters:
        key = "release.python" if part.worker and path == part.worker_python else "engine.python"
        yield _python(part, seen, path, key)
    if part.is_spark and seen.python[:2] < OLDEST:
        yield warn(
            part.host,
            "python",
            f"python3 is {version(seen.python)}; probe --from needs 3.11",
            "install a newer one, or measure with dsparkctl on the host itself",
        )


def _python(part: Part, seen: Seen, path: str, key: str) -> Finding:
    found = (seen.interpreters or {}).get(path)
    if found is None:
        return fail(
            part.host,
            "python",
            f"nothing that is a Python runs at {path}",
            f"install Python 3.11 or newer, or name another as {key}",
        )
    said = f"Python {version(found.version)} at {path}"
    if found.version[:2] < OLDEST:
        todo = f"install 3.11 or newer beside it and name it as {key}"
        return fail(part.host, "python", f"{said}, 3.11 is needed", todo)
    if part.worker and path == part.worker_python and not (found.has_venv and found.has_pip):
        missing = "venv" if not found.has_venv else "ensurepip"
        return fail(
            part.host,
            "python",
            f"{said} has no {missing}, so no environment can be built",
            "install the distribution's package for it: sudo apt install python3-venv",
        )
    if not found.has_pip:
        todo = "give it one: python -m ensurepip, or use engine.mount"
        return warn(part.host, "python", f"{said} has no pip to install the client with", todo)
    return ok(part.host, "python", said)


def memory(part: Part, seen: Seen) -> Iterator[Finding]:
    if seen.memory is None:
        return
    free_bytes = seen.memory.available_bytes + (seen.unit.memory_bytes if seen.unit else 0)
    said = f"{gib(free_bytes)} of {gib(seen.memory.total_bytes)} available"
    if part.worker is None:
        if part.is_spark and free_bytes < SPARK_SPARE_BYTES:
            todo = "leave it some: lower the engine's share of memory; a Spark without any freezes"
            yield warn(part.host, "memory", said, todo)
        else:
            yield ok(part.host, "memory", said)
        return
    need_bytes = worker_bytes(part, seen)
    said = f"{said}, the worker takes about {gib(need_bytes)}"
    if seen.memory.total_bytes < need_bytes:
        todo = "lower worker.weight_cache_mb or worker.markov_cache_mb, or use a larger host"
        yield fail(part.host, "memory", said, todo)
    elif free_bytes < need_bytes:
        yield warn(part.host, "memory", said, "end what else runs there, or lower the caches")
    else:
        yield ok(part.host, "memory", said)


def worker_bytes(part: Part, seen: Seen) -> int:
    """What the worker will hold in the host's memory, about."""
    worker = part.worker
    assert worker is not None
    held = RUNTIME_BYTES
    if worker.markov is not None and worker.markov_cache and worker.device == "cpu":
        held += worker.markov_cache_mb << 20
    if worker.device == "cpu":
        held += (worker.weight_cache_mb << 20) + checkpoint_bytes(seen)
    return held


def checkpoint_bytes(seen: Seen) -> int:
    """What lies in the checkpoint's folder now."""
    return sum(filter(None, seen.checkpoint.sizes.values())) if seen.checkpoint else 0


def memlock(part: Part, seen: Seen) -> Iterator[Finding]:
    if part.worker is not None and seen.unit is None:
        yield ok(part.host, "memlock", "no unit yet; ours sets LimitMEMLOCK=infinity")
    elif part.worker is not None or part.wants_rdma:
        where = f"in {UNIT}" if part.worker else "of this account's sessions"
        limit = seen.unit.memlock_bytes if part.worker and seen.unit else seen.memlock_bytes
        said = f"{'no limit' if limit is None else f'{limit >> 10} KiB'} {where}"
        if limit is None or limit >= PINNED_BYTES:
            yield ok(part.host, "memlock", said)
        elif part.wants_rdma:
            yield fail(part.host, "memlock", f"{said}, RDMA pins {PINNED_BYTES >> 20} MiB", _MORE)
        else:
            yield warn(part.host, "memlock", f"{said}, which RDMA would not get by with", _MORE)


_MORE: Final = "remove the drop-in that lowers it, or set LimitMEMLOCK=infinity where it is set"
