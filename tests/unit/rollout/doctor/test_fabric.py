"""doctor's check of libfabric (issue 7; §5): only where the endpoint asks for it."""

from pathlib import Path
from typing import Any

import pytest

from dsparkctl.rollout.doctor.checks.fabric import fabric
from dsparkctl.rollout.doctor.collector.fabric import libfabric
from dsparkctl.rollout.doctor.observations import Libfabric
from dsparkctl.rollout.doctor.part import part_of
from tests.unit.rollout.doctor.seeing import fleet as fleet_of
from tests.unit.rollout.doctor.seeing import lines, seen, spark, worker

O1: dict[str, str] = {"listen: tcp": "listen: o1tcp"}
GOOD: dict[str, Any] = {"version": "1.17", "providers": ("tcp",), "has_headers": True,
                        "has_compiler": True}  # fmt: skip
SAID = "libfabric 1.17; providers with FI_EP_MSG: tcp"


def told(scheme: str = "o1tcp", **changed: Any) -> list[str]:
    part = worker(**{"listen: tcp": f"listen: {scheme}"})
    return lines(fabric(part, seen(libfabric=GOOD | changed)))


def test_a_host_that_has_all_of_it() -> None:
    assert told() == [f"ok x86host fabric: {SAID}"]
    part = part_of(fleet_of(**O1), "spark-a")
    assert lines(fabric(part, seen(libfabric=GOOD))) == [f"ok spark-a fabric: {SAID}"]


def test_it_is_asked_of_nobody_whose_endpoint_is_tcp_and_of_no_other_rank() -> None:
    bad = seen(libfabric=GOOD | {"version": None})
    for part in (worker(), spark(), part_of(fleet_of(**O1), "spark-b")):
        assert lines(fabric(part, bad)) == []


def test_what_is_missing_is_named() -> None:
    assert told(version=None) == [
        "warn x86host fabric: no libfabric.so.1 -> install libfabric1, or use a tcp:// endpoint"
        " instead of o1tcp://"
    ]
    assert told(has_headers=False, has_compiler=False) == [
        f"warn x86host fabric: {SAID} -> install libfabric-dev and gcc where"
        " `dsparkctl fabric build` is to run"
    ]
    assert told("o1rdma") == [
        f"warn x86host fabric: {SAID} -> o1rdma:// needs the provider verbs: its device, or its"
        " package"
    ]
    assert told("o1rdma", providers=None) == [
        "ok x86host fabric: libfabric 1.17; providers with FI_EP_MSG: unknown, no fi_info"
    ]


def test_the_collector_tells_what_this_host_has() -> None:
    found = Libfabric.model_validate(libfabric(""))
    assert found.has_headers == Path("/usr/include/rdma/fabric.h").exists()
    if found.providers is not None:
        assert "tcp" in found.providers


def test_a_host_without_libfabric_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", nothing)
    assert libfabric("/nowhere")["version"] is None
    assert libfabric("/nowhere")["has_headers"] is False
