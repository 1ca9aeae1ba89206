"""doctor's checks of one end of a direct link (issue 5 §2; §4.1)."""

from typing import Any

import pytest

from dsparkctl.rollout.doctor.checks.link import link
from tests.unit.rollout.doctor.seeing import lines, seen, spark

CARD = {
    "name": "enp1s0",
    "mtu": 9000,
    "is_up": True,
    "speed_mbit": 10_000,
    "addresses": ["10.202.28.2"],
}
LAN = {"name": "eth0", "mtu": 1500, "is_up": True, "speed_mbit": None, "addresses": ["10.0.0.4"]}
PEER = "10.202.28.1"
ROUTE = {"interface": "enp1s0", "gateway": None}
PING = {"whole_ok": True, "small_ok": True, "is_missing": False, "said": ""}


def linked(
    card: dict[str, Any] | None = None,
    route: dict[str, Any] | None = None,
    ping: dict[str, Any] | None = None,
) -> dict[str, str]:
    """The lines of the Spark's end, by check."""
    found = seen(
        interfaces=[LAN, CARD | (card or {})],
        routes={PEER: ROUTE | (route or {})},
        pings={PEER: PING | (ping or {})},
    )
    return {line.split()[2].rstrip(":"): line for line in lines(link(spark(), found))}


def test_a_good_end() -> None:
    assert list(linked().values()) == [
        "ok spark-a address: 10.202.28.2 is on enp1s0",
        "ok spark-a route: to 10.202.28.1 it leads over enp1s0, directly",
        "ok spark-a mtu: enp1s0 has 9000",
        "ok spark-a ping: 9000 bytes reach 10.202.28.1 in one piece",
        "ok spark-a speed: enp1s0 has negotiated 10 Gbit/s",
    ]


def test_a_missing_address_names_the_interface_that_lacks_one() -> None:
    assert list(linked({"addresses": []}).values()) == [
        "fail spark-a address: no interface has 10.202.28.2 (up, and without an address: enp1s0)"
        " -> sudo ip address add 10.202.28.2/24 dev enp1s0, and in the system's network"
        " configuration"
    ]
    assert "dev INTERFACE," in linked({"addresses": ["10.9.9.9"]})["address"]


def test_an_interface_without_a_carrier() -> None:
    assert list(linked({"is_up": False}).values()) == [
        "fail spark-a address: 10.202.28.2 is on enp1s0, which is down or has no carrier"
        " -> check the cable, then sudo ip link set dev enp1s0 up"
    ]


TODO = " -> sudo ip route replace 10.202.28.1/32 dev enp1s0 src 10.202.28.2"


@pytest.mark.parametrize(
    ("route", "said"),
    [
        (
            {"interface": "eth0"},
            "fail spark-a route: to 10.202.28.1 it leads over eth0, 10.202.28.2 is on enp1s0",
        ),
        (
            {"gateway": "10.202.28.254"},
            "fail spark-a route: to 10.202.28.1 it leads through 10.202.28.254, which is no direct"
            " link",
        ),
        (
            {"interface": None, "error": "Network is unreachable"},
            "fail spark-a route: none to 10.202.28.1: Network is unreachable",
        ),
    ],
)
def test_a_route_that_is_not_the_link(route: dict[str, Any], said: str) -> None:
    assert linked(route=route)["route"] == said + TODO


def test_an_mtu_below_and_above_what_is_wanted() -> None:
    assert linked({"mtu": 1500})["mtu"] == (
        "fail spark-a mtu: enp1s0 has 1500, 9000 is wanted -> sudo ip link set dev enp1s0 mtu 9000"
    )
    assert linked({"mtu": 9216})["mtu"] == (
        "warn spark-a mtu: enp1s0 has 9216, dspark.yaml says 9000"
        " -> sudo ip link set dev enp1s0 mtu 9000; or write mtu: 9216"
    )


@pytest.mark.parametrize(
    ("ping", "said"),
    [
        (
            {"whole_ok": False, "said": "100% packet loss"},
            "fail spark-a ping: small packets reach 10.202.28.1, 9000 bytes in one piece do not:"
            " 100% packet loss -> at both ends, and on what lies between: sudo ip link set dev"
            " enp1s0 mtu 9000",
        ),
        (
            {"whole_ok": False, "small_ok": False, "said": "100% packet loss"},
            "fail spark-a ping: nothing comes back from 10.202.28.1: 100% packet loss -> check the"
            " cable, the address at the other end, and that no firewall drops ICMP",
        ),
        (
            {"whole_ok": False, "is_missing": True, "said": "ping: no such command"},
            "warn spark-a ping: nothing could be sent to 10.202.28.1: ping: no such command"
            " -> install it: sudo apt install iputils-ping",
        ),
    ],
)
def test_pings_that_do_not_come_back(ping: dict[str, Any], said: str) -> None:
    assert linked(ping=ping)["ping"] == said


def test_half_a_link_by_what_was_negotiated() -> None:
    """One QSFP cage is two halves."""
    assert linked({"speed_mbit": 5000})["speed"] == (
        "warn spark-a speed: enp1s0 has negotiated 5 Gbit/s, 10 are expected -> check cable and"
        " port; a port may be one half of a QSFP cage, each half with its own"
    )
    assert "speed" not in linked({"speed_mbit": None})
