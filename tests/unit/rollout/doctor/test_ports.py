"""doctor's check of the worker's ports (issue 5 §2; §5, R37)."""

from typing import Any

from dsparkctl.rollout.doctor.checks.ports import ports
from tests.unit.rollout.doctor.seeing import lines, seen, spark, worker

HELD = {
    "address": "10.202.28.1",
    "port": 18620,
    "pid": 77,
    "command": "nginx: master",
    "unit": None,
}


def first(**other: Any) -> str:
    return lines(ports(worker(), seen(ports=[HELD | other])))[0]


def test_ports_that_nobody_holds_are_free() -> None:
    assert lines(ports(worker(), seen(ports=[]))) == [
        "ok x86host port: tcp://10.202.28.1:18620 is free",
        "ok x86host port: tcp://127.0.0.1:18630 is free",
        "ok x86host port: tcp://10.202.28.1:18630 is free",
    ]
    assert lines(ports(spark(), seen(ports=[]))) == []


def test_the_unit_holds_its_own() -> None:
    assert first(unit="dspark-worker.service", command="python -m dspark_worker") == (
        "ok x86host port: tcp://10.202.28.1:18620 is held by dspark-worker.service (pid 77)"
    )


def test_somebody_else_is_named() -> None:
    assert first() == (
        "fail x86host port: tcp://10.202.28.1:18620 is held by somebody else (pid 77, nginx:"
        " master) -> end it, or give worker.listen another port"
    )


def test_a_worker_that_somebody_started_by_hand() -> None:
    assert first(command="python -m dspark_worker serve", unit="session-3.scope") == (
        "fail x86host port: tcp://10.202.28.1:18620 is held by a worker that dspark-worker.service"
        " did not start (pid 77, python -m dspark_worker serve) -> end it: sudo kill 77"
    )


def test_without_root_a_holder_has_no_name() -> None:
    assert first(pid=None, command=None) == (
        "warn x86host port: somebody listens on tcp://10.202.28.1:18620, and this account may not"
        " see who -> sudo ss -ltnp sport = :18620"
    )


def test_a_listener_on_every_address_collides_and_one_on_another_address_does_not() -> None:
    for address in ("0.0.0.0", "::", "::ffff:10.202.28.1"):
        assert first(address=address).startswith("fail")
    assert first(address="10.0.0.9").startswith("ok")
