"""doctor's checks of Python, memory and memlock (issue 5 §2)."""

from dataclasses import replace
from typing import Any

import pytest

from dsparkctl.rollout.doctor.checks.system import memlock, memory, python
from dsparkctl.rollout.doctor.part import Part
from tests.unit.rollout.doctor.seeing import lines, seen, spark, worker

GIB = 1 << 30
OURS = "/usr/bin/python3"
GOOD = {"version": (3, 11, 2), "has_venv": True, "has_pip": True}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (GOOD, "ok x86host python: Python 3.11.2 at /usr/bin/python3"),
        (
            None,
            "fail x86host python: nothing that is a Python runs at /usr/bin/python3"
            " -> install Python 3.11 or newer, or name another as release.python",
        ),
        (
            GOOD | {"version": (3, 10, 12)},
            "fail x86host python: Python 3.10.12 at /usr/bin/python3, 3.11 is needed"
            " -> install 3.11 or newer beside it and name it as release.python",
        ),
        (
            GOOD | {"has_venv": False},
            "fail x86host python: Python 3.11.2 at /usr/bin/python3 has no venv, so no environment"
            " can be built -> install the distribution's package for it: sudo apt install"
            " python3-venv",
        ),
        (
            GOOD | {"has_pip": False},
            "fail x86host python: Python 3.11.2 at /usr/bin/python3 has no ensurepip, so no"
            " environment can be built -> install the distribution's package for it: sudo apt"
            " install python3-venv",
        ),
    ],
)
def test_the_workers_python(found: Any, said: str) -> None:
    assert lines(python(worker(), seen(interpreters={OURS: found}))) == [said]


def test_the_engines_python_and_the_one_that_probes_from_there() -> None:
    theirs = "/opt/vllm/bin/python"
    good = seen(interpreters={theirs: GOOD})
    assert lines(python(spark(), good)) == [
        "ok spark-a python: Python 3.11.2 at /opt/vllm/bin/python"
    ]
    bad = seen(python=(3, 9, 18), interpreters={theirs: GOOD | {"has_pip": False}})
    assert lines(python(spark(), bad)) == [
        "warn spark-a python: Python 3.11.2 at /opt/vllm/bin/python has no pip to install the"
        " client with -> give it one: python -m ensurepip, or use engine.mount",
        "warn spark-a python: python3 is 3.9.18; probe --from needs 3.11"
        " -> install a newer one, or measure with dsparkctl on the host itself",
    ]
    assert "or name another as engine.python" in lines(python(spark(), seen(interpreters={})))[0]


def memories(total: float, available: float) -> dict[str, int]:
    return {"total_bytes": int(total * GIB), "available_bytes": int(available * GIB)}


@pytest.mark.parametrize(
    ("had", "said"),
    [
        (memories(64, 32), "ok x86host memory: 32.0 GiB of 64.0 GiB available, the worker takes"),
        (memories(64, 6), "warn x86host memory: 6.0 GiB of 64.0 GiB available, the worker takes"),
        (memories(8, 6), "fail x86host memory: 6.0 GiB of 8.0 GiB available, the worker takes"),
    ],
)
def test_the_workers_memory_on_a_cpu(had: Any, said: str) -> None:
    """1 GiB of interpreter, 6 GiB of decoded weights, 3 GiB of checkpoint."""
    sizes = {"sizes": {"model.safetensors": 3 * GIB, "broken": None}, "error": None}
    (found,) = lines(memory(worker(cuda_0="cpu"), seen(memory=had, checkpoint=sizes)))
    assert found.startswith(f"{said} about 10.0 GiB")


def test_what_the_running_worker_holds_is_free_for_the_next_one() -> None:
    unit = {"active": "active", "pid": 7, "memlock_bytes": None, "memory_bytes": 5 * GIB}
    found = seen(memory=memories(64, 4), unit=unit)
    assert lines(memory(worker(cuda_0="cpu"), found))[0].startswith("ok")


def test_a_spark_without_memory_freezes() -> None:
    assert lines(memory(spark(), seen(memory=memories(120, 2)))) == [
        "ok spark-a memory: 2.0 GiB of 120.0 GiB available"
    ]
    assert lines(memory(spark(), seen(memory=memories(120, 0.5)))) == [
        "warn spark-a memory: 512 MiB of 120.0 GiB available -> leave it some: lower the engine's"
        " share of memory; a Spark without any freezes"
    ]


def unit(limit: int | None) -> dict[str, Any]:
    return {"active": "active", "pid": 1, "memlock_bytes": limit, "memory_bytes": 0}


def with_rdma(part: Part) -> Part:
    return replace(part, scheme="o1rdma")


def test_memlock_of_the_unit_and_of_a_spark_that_wants_rdma() -> None:
    more = " -> remove the drop-in that lowers it, or set LimitMEMLOCK=infinity where it is set"
    low, none = seen(unit=unit(8 << 20)), seen(unit=unit(None))
    name = "dspark-worker.service"
    assert lines(memlock(worker(), seen())) == [
        "ok x86host memlock: no unit yet; ours sets LimitMEMLOCK=infinity"
    ]
    assert lines(memlock(worker(), none)) == [f"ok x86host memlock: no limit in {name}"]
    assert lines(memlock(worker(), low)) == [
        f"warn x86host memlock: 8192 KiB in {name}, which RDMA would not get by with{more}"
    ]
    assert lines(memlock(with_rdma(worker()), low)) == [
        f"fail x86host memlock: 8192 KiB in {name}, RDMA pins 64 MiB{more}"
    ]
    assert lines(memlock(spark(), seen(memlock_bytes=8 << 20))) == []
    assert lines(memlock(with_rdma(spark()), seen(memlock_bytes=8 << 20))) == [
        f"fail spark-a memlock: 8192 KiB of this account's sessions, RDMA pins 64 MiB{more}"
    ]
