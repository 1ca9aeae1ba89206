"""Interfaces, the route to the other end of each link, and pings that may not be fragmented."""

from __future__ import annotations

import json

from dsparkctl.rollout.doctor.collector.tools import read, run

MAX_INTERFACES = 256
_HEADERS_BYTES = 28
"""IPv4 and ICMP, in front of a ping's payload."""


def interfaces(root: str) -> list[dict[str, object]]:
    """As `ip` lists them; the speed in Mbit/s where the driver tells one."""
    said = run(["ip", "-j", "address", "show"], 10)
    if said.code:
        raise OSError(said.reason)
    return [
        {
            "name": one["ifname"],
            "mtu": one["mtu"],
            "is_up": "LOWER_UP" in one["flags"] and "UP" in one["flags"],
            "speed_mbit": _speed(root, one["ifname"]),
            "addresses": [
                info["local"] for info in one.get("addr_info", ()) if info["family"] == "inet"
            ],
        }
        for one in json.loads(said.out)[:MAX_INTERFACES]
    ]


def routes(links: list[dict[str, object]]) -> dict[str, dict[str, object]]:
    """By the other end's address: over which interface a packet from our end would leave."""
    found: dict[str, dict[str, object]] = {}
    for link in links:
        peer, own = str(link["peer"]), str(link["own"])
        said = run(["ip", "-j", "route", "get", peer, "from", own], 10)
        if said.code:
            found[peer] = {"interface": None, "gateway": None, "error": said.reason}
            continue
        route = json.loads(said.out)[0]
        found[peer] = {"interface": route.get("dev"), "gateway": route.get("gateway")}
    return found


def pings(links: list[dict[str, object]]) -> dict[str, dict[str, object]]:
    """By the other end's address: whether packets of the whole MTU arrive in one piece."""
    found: dict[str, dict[str, object]] = {}
    for link in links:
        whole = _ping(link, int(str(link["mtu"])) - _HEADERS_BYTES)
        small = whole if not whole["ok"] and whole["is_missing"] else _ping(link, 56)
        found[str(link["peer"])] = {
            "whole_ok": whole["ok"],
            "small_ok": whole["ok"] or small["ok"],
            "is_missing": whole["is_missing"],
            "said": whole["said"],
        }
    return found


def _ping(link: dict[str, object], n_bytes: int) -> dict[str, object]:
    """Three packets within two seconds; one that comes back is enough."""
    ends = ["-I", str(link["own"]), str(link["peer"])]
    argv = ["ping", "-n", "-M", "do", "-c", "3", "-i", "0.2", "-W", "1", "-s", str(n_bytes), *ends]
    said = run(argv, 6)
    lines = [line.strip() for line in (said.err + "\n" + said.out).splitlines()]
    errors = [line for line in lines if "rror" in line or "too long" in line or "nreach" in line]
    return {
        "ok": said.code == 0,
        "is_missing": said.code in (126, 127),
        "said": (errors[0] if errors else said.reason)[:200],
    }


def _speed(root: str, name: str) -> int | None:
    """Reading it fails, or gives -1, where there is no cable and where there is no such thing."""
    text = read(root + "/sys/class/net/" + name + "/speed") or ""
    return int(text) if text.isdigit() and int(text) > 0 else None
