"""What is wrong with hosts and links, before it shows in a round: pure checks over observations.

Decides what is well, worth a word, or a reason not to deploy, and says of each what was seen and
what to do. Never changes a network setting: it names the command. Collecting is `examination`'s.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from dsparkctl.config.fleet import Fleet
from dsparkctl.config.hosts import LinkSettings

STEP_BYTES: Final = (184_416, 614_400, 3_932_160)
"""What rounds bring: six new rows, twenty, a whole window (§8.1)."""
_SLOW: Final = 0.6
"""Of the expected rate, below which a link is slow: half a link is the usual fault."""
_CLOCK_S: Final = 2.0
_MEMLOCK_BYTES: Final = 64 << 20
"""What RDMA registers, with room."""
_OLDEST_PYTHON: Final = (3, 11)


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(NamedTuple):
    """One line of a doctor."""

    host: str
    check: str
    verdict: Verdict
    seen: str
    todo: str = ""


def host_findings(fleet: Fleet, host: str, seen: Mapping[str, Any]) -> Iterator[Finding]:
    """Of one host by itself. `seen` is what `on_host/doctor_facts.py` said, and how it was reached:
    `echo`, what a shell there answered to `echo dspark`."""
    is_worker = host == fleet.worker.host
    yield _shell(host, seen)
    yield _python(host, seen, is_worker=is_worker)
    yield _clock(host, seen)
    if is_worker:
        yield from _worker(fleet, host, seen)
    for link, found in zip(links_of(fleet, host), seen["links"], strict=True):
        yield from _link(host, link, found, seen["interfaces"])
    yield _rdma(host, links_of(fleet, host), seen["rdma"])


def _shell(host: str, seen: Mapping[str, Any]) -> Finding:
    if seen["echo"] == "dspark\n":
        return Finding(host, "ssh", Verdict.OK, f"logs in, and is root by {seen['root']}")
    said = ascii(seen["echo"])[:60]
    return Finding(
        host, "ssh", Verdict.FAIL, f"a command's output is {said}, not what it printed",
        "let ~/.bashrc print nothing where the shell is not interactive",
    )  # fmt: skip


def _python(host: str, seen: Mapping[str, Any], *, is_worker: bool) -> Finding:
    version = ".".join(map(str, seen["python"]))
    if is_worker and tuple(seen["python"][:2]) < _OLDEST_PYTHON:
        todo = "install Python 3.11 or newer, and name it by release.python"
        return Finding(host, "python", Verdict.FAIL, version, todo)
    return Finding(host, "python", Verdict.OK, f"{version} on {seen['machine']}")


def _clock(host: str, seen: Mapping[str, Any]) -> Finding:
    off_s = seen["clock_off_s"]
    said = f"{off_s:+.1f} s from here"
    if abs(off_s) > _CLOCK_S:
        todo = "run a time service there, or logs cannot be laid side by side"
        return Finding(host, "clock", Verdict.WARN, said, todo)
    return Finding(host, "clock", Verdict.OK, said)


def _worker(fleet: Fleet, host: str, seen: Mapping[str, Any]) -> Iterator[Finding]:
    worker, root = fleet.worker, str(fleet.release.root)
    free_gb = seen["folders"][root]["free_bytes"] / 1e9
    said = f"{free_gb:.1f} GB free below {root}"
    if free_gb < 10:
        yield Finding(host, "disk", Verdict.WARN, said, "a release with CUDA's torch takes 8 GB")
    else:
        yield Finding(host, "disk", Verdict.OK, said)
    for name, path in (("checkpoint", worker.checkpoint), ("receipt", worker.receipt)):
        if path is None:
            continue
        if seen["folders"][str(path)]["exists"]:
            yield Finding(host, name, Verdict.OK, str(path))
        else:
            todo = "dsparkctl deploy checkpoint DIR --receipt FILE brings it"
            yield Finding(host, name, Verdict.FAIL, f"{path} is missing", todo)
    available_gb = seen["memory"].get("MemAvailable", 0) / 1e9
    yield Finding(host, "memory", Verdict.OK, f"{available_gb:.1f} GB available")
    yield from _gpu(fleet, host, seen["gpus"])
    for port in sorted({endpoint.port for endpoint in (worker.listen, *worker.admin)}):
        holder = seen["listeners"].get(str(port))
        if holder is None:
            yield Finding(host, "port", Verdict.OK, f"{port} is free")
        elif "python" in holder:
            yield Finding(host, "port", Verdict.OK, f"{port} is a worker's: {holder}")
        else:
            todo = f"end it, or listen elsewhere: it is {holder}"
            yield Finding(host, "port", Verdict.FAIL, f"{port} is taken", todo)
    soft = seen["memlock"][0]
    if 0 <= soft < _MEMLOCK_BYTES:
        yield Finding(
            host, "memlock", Verdict.WARN, f"{soft >> 10} KiB for root's own processes",
            "the unit raises its own; for o1rdma by hand: LimitMEMLOCK=infinity",
        )  # fmt: skip


def _gpu(fleet: Fleet, host: str, gpus: Sequence[Mapping[str, str]]) -> Iterator[Finding]:
    device = fleet.worker.device
    if device == "cpu":
        return
    index = int(device.partition(":")[2])
    if index >= len(gpus):
        todo = "nvidia-smi there says why; worker.device may also be cpu"
        yield Finding(host, "gpu", Verdict.FAIL, f"{device}: {len(gpus)} GPUs are seen", todo)
        return
    one = gpus[index]
    said = f"{one.get('name')}, driver {one.get('driver_version')}, sm {one.get('compute_cap')}, "
    yield Finding(host, "gpu", Verdict.OK, said + f"{one.get('memory.free')} free")


def links_of(fleet: Fleet, host: str) -> list[LinkSettings]:
    """The links that end at a host, each with `bind` as its own address."""
    far = [link for link in fleet.links if link.host == host]
    if host != fleet.worker.host:
        return far
    near = [link.model_copy(update={"bind": link.peer, "peer": link.bind}) for link in fleet.links]
    return [*far, *near]


def _link(
    host: str, link: LinkSettings, seen: Mapping[str, Any], interfaces: Sequence[Mapping[str, Any]]
) -> Iterator[Finding]:
    own = next((one for one in interfaces if link.bind in one["addresses"]), None)
    name = f"link {link.bind} - {link.peer}"
    if own is None:
        yield Finding(
            host, name, Verdict.FAIL, f"{link.bind} is no address of this host",
            f"ip addr add {link.bind}/30 dev INTERFACE, and in the network's own configuration",
        )  # fmt: skip
        return
    if not own["is_up"]:
        todo = f"ip link set {own['name']} up"
        yield Finding(host, name, Verdict.FAIL, f"{own['name']} is down", todo)
        return
    by = (seen["route"] or {}).get("dev")
    if by != own["name"]:
        todo = f"ip route add {link.peer}/32 dev {own['name']} src {link.bind}"
        yield Finding(host, name, Verdict.FAIL, f"{link.peer} is reached by {by}, not it", todo)
        return
    if own["mtu"] != link.mtu:
        todo = f"ip link set {own['name']} mtu {link.mtu}, at both ends"
        said = f"{own['name']} has MTU {own['mtu']}, expected {link.mtu}"
        yield Finding(host, name, Verdict.FAIL, said, todo)
        return
    if not seen["reaches"]:
        todo = "look at the cable and at the far end's address and firewall"
        yield Finding(host, name, Verdict.FAIL, f"{link.peer} does not answer a ping", todo)
        return
    if not seen["reaches_whole"]:
        todo = f"set MTU {link.mtu} at both ends: one of them has less"
        said = f"a packet of {link.mtu} bytes does not arrive whole"
        yield Finding(host, name, Verdict.FAIL, said, todo)
        return
    yield Finding(host, name, Verdict.OK, f"{own['name']}, MTU {own['mtu']}, packets arrive whole")


def transfer_finding(host: str, link: LinkSettings, median_us: Mapping[str, float]) -> Finding:
    """Of a measured transfer of STEP sizes over one link."""
    rtt_us = median_us["0"]
    sizes = [n for n in STEP_BYTES if str(n) in median_us]
    spent_us = {n: max(1e-3, median_us[str(n)] - rtt_us) for n in sizes}
    gbit = {n: n * 8 / spent_us[n] / 1e3 for n in sizes}
    said = f"RTT {rtt_us:.0f} us, " + ", ".join(
        f"{n / 1000:.0f} kB in {median_us[str(n)]:.0f} us" for n in sizes
    )
    best = max(gbit.values())
    said += f"; {best:.1f} Gbit/s, expected {link.rate_gbit:g}"
    name = f"link {link.bind} - {link.peer}"
    if best < _SLOW * link.rate_gbit:
        todo = "check that both halves of the port are used, its MTU, and the slot's PCIe width"
        return Finding(host, name, Verdict.WARN, said, todo)
    return Finding(host, name, Verdict.OK, said)


def _rdma(
    host: str, links: Sequence[LinkSettings], devices: Sequence[Mapping[str, Any]]
) -> Finding:
    if not devices:
        return Finding(host, "rdma", Verdict.OK, "no RDMA device; tcp needs none")
    wanted = {_gid_of(link.bind) for link in links}
    for device in devices:
        for gid in device["gids"]:
            if gid["gid"] in wanted and "v2" in gid["type"]:
                said = f"{device['device']} port {gid['port']}, GID {gid['index']} (RoCE v2)"
                return Finding(host, "rdma", Verdict.OK, said)
    names = ", ".join(str(device["device"]) for device in devices)
    todo = "its GID table follows the interface's address: look at that first"
    return Finding(host, "rdma", Verdict.WARN, f"{names}: no RoCE v2 GID of a link's address", todo)


def _gid_of(address: str) -> str:
    """An IPv4 address as a GID spells it."""
    a, b, c, d = map(int, address.split("."))
    return f"0000:0000:0000:0000:0000:ffff:{a << 8 | b:04x}:{c << 8 | d:04x}"


def skew_findings(versions: Mapping[str, str], ours: str) -> Iterator[Finding]:
    """Versions of this distribution by host; what is not installed is not named."""
    for host, version in versions.items():
        if version == ours:
            yield Finding(host, "version", Verdict.OK, version)
        else:
            todo = "deploy again: worker and client of one release belong together"
            yield Finding(host, "version", Verdict.WARN, f"{version}, here is {ours}", todo)
