"""doctor on a real link between two network namespaces (issue 5 §2; §4.1).

Skipped, and shown as skipped, where a test may not make namespaces.
"""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.net.ping import Course, Tally
from dsparkctl.rollout.doctor.examine import preflight
from dsparkctl.rollout.doctor.transfer_program import LONGEST_S
from dsparkctl.rollout.ping_from import ping_from
from tests.unit.rollout.doctor.seeing import fleet, line
from tests.unit.rollout.local import as_host
from tests.unit.rollout.namespaces import MISSING, Cable, cable, can_have_namespaces

pytestmark = pytest.mark.skipif(not can_have_namespaces(), reason=MISSING)

ROOT = Path(__file__).parents[4]
LINK = ("address", "route", "mtu", "ping", "rtt", "rate")


@pytest.fixture
def link() -> Iterator[Cable]:
    with cable() as made:
        yield made


def looked_at(link: Cable, rate_gbit: float = 0.5) -> list[str]:
    """The lines about the link, host by host."""
    hosts = {name: as_host(host) for name, host in link.hosts().items()}
    found = preflight(fleet(**{"rate_gbit: 10.0": f"rate_gbit: {rate_gbit}"}), hosts)
    return [line(one) for one in found if one.check in LINK]


def of(host: str, check: str, lines: list[str]) -> list[str]:
    return [one for one in lines if one.split()[1:3] == [host, f"{check}:"]]


def test_a_good_link_is_ok_line_by_line(link: Cable) -> None:
    found = looked_at(link)
    assert found[:4] == [
        "ok x86host address: 10.202.28.1 is on link0",
        "ok x86host route: to 10.202.28.2 it leads over link0, directly",
        "ok x86host mtu: link0 has 9000",
        "ok x86host ping: 9000 bytes reach 10.202.28.2 in one piece",
    ]
    assert found[4:8] == [
        "ok spark-a address: 10.202.28.2 is on link0",
        "ok spark-a route: to 10.202.28.1 it leads over link0, directly",
        "ok spark-a mtu: link0 has 9000",
        "ok spark-a ping: 9000 bytes reach 10.202.28.1 in one piece",
    ]
    assert re.fullmatch(r"(ok|warn) spark-a rtt: \d+ us to 10\.202\.28\.1 and back.*", found[8])
    assert re.fullmatch(
        r"ok spark-a rate: \d+\.\d Gbit/s \(0\.18 MB in .* ms, 0\.61 MB in .* ms, 3\.93 MB in .*",
        found[9],
    )
    assert len(found) == 10


def test_one_end_fell_back_to_1500(link: Cable) -> None:
    link.at_worker("ip", "link", "set", "link0", "mtu", "1500")
    found = looked_at(link)
    assert of("x86host", "mtu", found) == [
        "fail x86host mtu: link0 has 1500, 9000 is wanted -> sudo ip link set dev link0 mtu 9000"
    ]
    assert of("spark-a", "mtu", found)[1].startswith(
        "fail spark-a mtu: link0 has 9000, link0 of x86host has 1500"
    )
    (ping,) = of("spark-a", "ping", found)
    assert ping.startswith(
        "fail spark-a ping: small packets reach 10.202.28.1, 9000 bytes in one piece do not: "
    )
    (theirs,) = of("x86host", "ping", found)
    assert "one piece do not: ping: local error: message too long" in theirs


def test_the_sparks_address_is_missing(link: Cable) -> None:
    link.at_spark("ip", "address", "flush", "dev", "link0")
    found = looked_at(link)
    assert [one for one in found if "spark-a" in one.split()[1]] == [
        "fail spark-a address: no interface has 10.202.28.2 (up, and without an address: link0)"
        " -> sudo ip address add 10.202.28.2/24 dev link0, and in the system's network"
        " configuration"
    ]
    assert of("x86host", "ping", found)[0].startswith("fail x86host ping: nothing comes back")


def test_the_route_leads_over_another_interface(link: Cable) -> None:
    link.at_spark("ip", "link", "add", "lan0", "type", "veth", "peer", "name", "lan1")
    link.at_spark("ip", "link", "set", "lan1", "up")
    link.at_spark("ip", "address", "add", "10.0.0.4/24", "dev", "lan0")
    link.at_spark("ip", "link", "set", "lan0", "up")
    link.at_spark("ip", "route", "add", "10.202.28.1/32", "dev", "lan0")
    assert of("spark-a", "route", looked_at(link)) == [
        "fail spark-a route: to 10.202.28.1 it leads over lan0, 10.202.28.2 is on link0"
        " -> sudo ip route replace 10.202.28.1/32 dev link0 src 10.202.28.2"
    ]


def test_the_route_is_the_one_that_our_own_address_takes(link: Cable) -> None:
    """A rule about the source leads elsewhere, whatever the main table says."""
    link.at_spark("ip", "link", "add", "lan0", "type", "veth", "peer", "name", "lan1")
    for name in ("lan0", "lan1"):
        link.at_spark("ip", "link", "set", name, "up")
    link.at_spark("ip", "route", "add", "10.202.28.1/32", "dev", "lan0", "table", "77")
    link.at_spark("ip", "rule", "add", "from", "10.202.28.2", "table", "77")
    (found,) = of("spark-a", "route", looked_at(link))
    assert found.startswith("fail spark-a route: to 10.202.28.1 it leads over lan0")


@pytest.mark.parametrize(
    ("rate", "expected_gbit", "said"),
    [("500mbit", 1.0, "half of the 1 that are expected"), ("100mbit", 10.0, "10 are expected")],
)
def test_a_link_that_is_slower_than_it_should_be(
    link: Cable, rate: str, expected_gbit: float, said: str
) -> None:
    queue = ("tbf", "rate", rate, "burst", "64kb", "latency", "50ms")
    link.at_spark("tc", "qdisc", "add", "dev", "link0", "root", *queue)
    (found,) = of("spark-a", "rate", looked_at(link, expected_gbit))
    assert found.startswith("warn spark-a rate: 0.")
    assert said in found


def test_a_link_on_which_large_messages_stick_is_given_up_in_time(link: Cable) -> None:
    """The size of a STEP never gets through: bounded, and said."""
    queue = ("tbf", "rate", "64kbit", "burst", "16kb", "latency", "100ms")
    link.at_spark("tc", "qdisc", "add", "dev", "link0", "root", *queue)
    start_s = time.monotonic()
    (found,) = of("spark-a", "rate", looked_at(link))
    assert found.startswith("fail spark-a rate: 10.202.28.1 took not one message of a STEP's size")
    assert time.monotonic() - start_s < LONGEST_S + 20


_ANSWER = """
from tests.unit.net.peers import answering, peer
with peer(answering(), "10.202.28.1") as endpoint:
    print(endpoint.port, flush=True)
    input()
"""


def test_a_spark_measures_the_link_itself(link: Cable) -> None:
    """`probe --from`: from the Spark's own end of the link (R38)."""
    inside = ("ip", "netns", "exec", link.worker, sys.executable, "-c", _ANSWER)
    with subprocess.Popen(
        inside, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as answering:
        assert answering.stdout
        port = int(answering.stdout.readline())
        tally = Tally()
        endpoint = Endpoint("tcp", "10.202.28.1", port, bind="10.202.28.2")
        course = Course(n=50, pause_s=0.0, payload_bytes=0, timeout_s=2.0)
        ping_from(as_host(link.hosts()["spark-a"]), endpoint, course, tally)
        answering.communicate("\n", timeout=10)
    assert len(tally.rtt_us) == 50
