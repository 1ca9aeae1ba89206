"""doctor's checks between hosts (issue 5 §2): MTU at both ends, rate, RTT, clocks, versions."""

from typing import Any

import pytest

from dsparkctl.rollout.doctor.checks.between import clocks, mtus, transfer, versions
from dsparkctl.rollout.doctor.observations import Installed, Login, Transfer
from dsparkctl.rollout.doctor.transfer import SIZES
from tests.unit.rollout.doctor.seeing import lines, seen, spark

(END,) = spark().ends


def card(name: str, address: str, mtu: int) -> Any:
    one = {"name": name, "mtu": mtu, "is_up": True, "speed_mbit": None, "addresses": [address]}
    return seen(interfaces=[one])


def test_both_ends_must_have_one_mtu() -> None:
    """One side may fall back to 1500 after a reboot."""
    ours, theirs = card("enp1s0", "10.202.28.2", 9000), card("eno2", "10.202.28.1", 1500)
    assert lines(mtus(spark(), ours, END, theirs)) == [
        "fail spark-a mtu: enp1s0 has 9000, eno2 of x86host has 1500 -> the same at both: sudo ip"
        " link set dev enp1s0 mtu 9000; sudo ip link set dev eno2 mtu 9000"
    ]
    assert lines(mtus(spark(), ours, END, card("eno2", "10.202.28.1", 9000))) == []


def test_the_sizes_are_those_of_real_steps() -> None:
    """§8.1: a decode of one request, of four, a prefill's window; bounded in all."""
    assert [n for n, _ in SIZES][:2] == [184_416, 614_624]
    assert SIZES[2][0] == 3_932_256
    assert sum(n * (times + 1) for n, times in SIZES) < 64 << 20


def measured(gbit: float, rtt_us: float = 80.0, **other: Any) -> list[str]:
    """A link on which a message takes as long as its bits."""
    rounds = [{"n_bytes": n, "us": [n * 8 / gbit / 1e3] * 3} for n, _ in SIZES]
    found = {"rtt_us": [rtt_us] * 3, "rounds": rounds, **other}
    return lines(transfer(spark(), END, Transfer.model_validate(found), timeout_ms=50.0))


def test_a_link_of_the_expected_rate() -> None:
    assert measured(9.0) == [
        "ok spark-a rtt: 80 us to 10.202.28.1 and back",
        "ok spark-a rate: 9.0 Gbit/s (0.18 MB in 0.16 ms, 0.61 MB in 0.55 ms, 3.93 MB in 3.50 ms)",
    ]


def test_half_a_link_is_a_warning_that_says_where_the_other_half_is() -> None:
    assert measured(5.0)[1] == (
        "warn spark-a rate: 5.0 Gbit/s (0.18 MB in 0.30 ms, 0.61 MB in 0.98 ms, 3.93 MB in 6.29"
        " ms), half of the 10 that are expected -> one port may be half of a link: see both PCIe"
        " halves of the cage, speed and MTU"
    )


def test_a_slow_link() -> None:
    assert measured(1.0)[1] == (
        "warn spark-a rate: 1.0 Gbit/s (0.18 MB in 1.48 ms, 0.61 MB in 4.92 ms, 3.93 MB in 31.46"
        " ms), 10 are expected -> see speed and MTU above, CPU governor and cable; or correct the"
        " link's rate_gbit"
    )


def test_a_link_on_which_no_round_can_be_in_time() -> None:
    assert measured(0.02)[1] == (
        "fail spark-a rate: 0.18 MB in 73.77 ms, 0.61 MB in 245.85 ms, 3.93 MB in 1572.90 ms: not"
        " even the smallest STEP arrives within policy.timeout_ms -> 50 ms are allowed; mend the"
        " link, or allow more"
    )


def test_a_long_round_trip() -> None:
    assert measured(9.0, 900.0)[0] == (
        "warn spark-a rtt: 900 us to 10.202.28.1 and back, under 500 are usual -> is it the direct"
        " link? look for a switch, power saving, interrupt coalescing"
    )


def test_nothing_measured_and_nothing_large_arriving() -> None:
    assert measured(1.0, rtt_us=80.0, rounds=[], error="timed out") == [
        "warn spark-a rate: nothing could be measured to 10.202.28.1: timed out -> see the lines"
        " above; a firewall may let the worker's own port through alone"
    ]
    stuck = [{"n_bytes": 184_416, "us": []}]
    assert measured(1.0, rounds=stuck, error="timed out")[1] == (
        "fail spark-a rate: 10.202.28.1 took not one message of a STEP's size: timed out -> check"
        " MTU and cable; small messages do arrive"
    )


def at(least_s: float, most_s: float) -> Login:
    return Login(echoed="", sudo_error=None, offset_s=(least_s, most_s))


TODO = " -> switch a time service on: timedatectl set-ntp true, or chrony with a local source"


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        (at(-0.05, 0.01), "ok spark-a clock: within 0.06 s of x86host"),
        (at(5.0, 5.1), f"warn spark-a clock: at least 5.0 s ahead of x86host{TODO}"),
        (at(-5.1, -5.0), f"warn spark-a clock: at least 5.0 s behind x86host{TODO}"),
        (at(-9.0, 9.0), "ok spark-a clock: within 9.01 s of x86host"),
    ],
)
def test_a_clock_is_judged_no_surer_than_the_way_there_and_back(theirs: Login, said: str) -> None:
    found = clocks({"x86host": at(-0.01, 0.01), "spark-a": theirs}, "x86host")
    assert lines(found) == ["ok x86host clock: within 0.01 s of this machine", said]


def test_without_the_workers_host_clocks_are_held_against_this_machine() -> None:
    assert lines(clocks({"spark-a": at(-0.5, 0.2)}, "x86host")) == [
        "ok spark-a clock: within 0.50 s of this machine"
    ]


def test_versions_of_worker_and_client() -> None:
    ours = Installed(version="0.2.0", contract="1.8")

    def installed(place: str, *found: str) -> Any:
        one = {"version": found[0], "contract": found[1]} if found else None
        return seen(installed={place: one})

    hosts = {
        "x86host": installed("worker", "0.2.0", "1.8"),
        "spark-a": installed("client", "0.1.0", "1.8"),
        "spark-b": installed("client", "0.1.0", "1.7"),
        "spark-c": installed("client"),
    }
    assert lines(versions(hosts, ours)) == [
        "ok x86host version: worker: 0.2.0 (contract 1.8)",
        "warn spark-a version: client: 0.1.0 (contract 1.8), 0.2.0 (contract 1.8) is here"
        " -> dsparkctl deploy all brings this one",
        "warn spark-b version: client: 0.1.0 (contract 1.7) speaks another contract, 0.2.0"
        " (contract 1.8) is here -> bring one release everywhere: dsparkctl deploy all",
        "ok spark-c version: client: not installed yet",
    ]
