"""Listening sockets: bound early, silent until they listen, one line when they cannot."""

import socket

import pytest

from dspark_worker import sockets as sockets_module
from dspark_worker.sockets import (
    ListenError,
    NoSuchAddress,
    accepted,
    bound,
    bound_in_time,
    listening,
)
from dsparkctl.contract.endpoint import Endpoint

ANY_PORT = Endpoint("tcp", "127.0.0.1", 0)


def test_a_bound_socket_refuses_connections_until_it_listens() -> None:
    with bound(ANY_PORT) as sock:
        address = sock.getsockname()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=1)
        assert listening(sock) == Endpoint("tcp", *address)
        socket.create_connection(address, timeout=1).close()


def test_5_an_accepted_connection_has_nodelay_and_none_waiting_is_none() -> None:
    with bound(ANY_PORT) as sock:
        endpoint = listening(sock)
        assert accepted(sock) is None
        with socket.create_connection((endpoint.host, endpoint.port)):
            found = accepted(sock)
            assert found is not None
            assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            found.close()


def test_a_busy_port_is_told_at_bind() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = Endpoint("tcp", "127.0.0.1", taken.getsockname()[1])
        with pytest.raises(ListenError, match=f"cannot listen on {endpoint}: .*in use"):
            bound(endpoint)


def test_an_address_that_two_share_is_told_at_listen() -> None:
    """Two sockets that do not listen yet may share an address; the second to listen is told."""
    with bound(ANY_PORT) as first, bound(Endpoint("tcp", *first.getsockname())) as second:
        endpoint = listening(first)
        with pytest.raises(ListenError, match=f"cannot listen on {endpoint}: .*in use"):
            listening(second)


def test_ipv6_is_served_and_spelt_with_brackets() -> None:
    with bound(Endpoint("tcp", "::1", 0)) as sock:
        assert str(listening(sock)).startswith("tcp://[::1]:")


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid"])
def test_an_address_of_another_machine_is_one_line(host: str) -> None:
    with pytest.raises(ListenError) as caught:
        bound(Endpoint("tcp", host, 1))
    assert f"tcp://{host}:1" in str(caught.value)
    assert "\n" not in str(caught.value)


NOBODYS = Endpoint("tcp", "192.0.2.1", 0)
"""An address for documentation: no machine has it (RFC 5737)."""


class Clock:
    """Stands still but for pauses."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.left_s: list[float] = []

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def bound(self, endpoint: Endpoint, wait_s: float) -> socket.socket:
        return bound_in_time(
            lambda: sockets_module.bound(endpoint),
            wait_s,
            waiting=self.left_s.append,
            now=self.now,
            sleep=self.sleep,
        )


def test_an_address_that_never_comes_is_waited_for_no_longer_than_was_said() -> None:
    clock = Clock()
    with pytest.raises(NoSuchAddress, match=f"cannot listen on {NOBODYS}"):
        clock.bound(NOBODYS, 2.2)
    assert clock.now_s == pytest.approx(2.2)
    assert clock.left_s == pytest.approx([2.2, 1.7, 1.2, 0.7, 0.2])


def test_without_a_wait_a_missing_address_is_told_at_once() -> None:
    clock = Clock()
    with pytest.raises(NoSuchAddress):
        clock.bound(NOBODYS, 0)
    assert clock.left_s == []


def test_a_link_that_gets_its_address_later_is_listened_on(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()

    def bound_at_3_s(endpoint: Endpoint) -> socket.socket:
        return bound(NOBODYS if clock.now_s < 3 else endpoint)

    monkeypatch.setattr(sockets_module, "bound", bound_at_3_s)
    with clock.bound(ANY_PORT, 60) as sock:
        assert sock.getsockname()[0] == "127.0.0.1"
    assert clock.now_s == 3


def test_a_busy_port_is_not_waited_for() -> None:
    clock = Clock()
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ListenError, match="in use"),
    ):
        clock.bound(Endpoint("tcp", "127.0.0.1", taken.getsockname()[1]), 60)
    assert clock.left_s == []
