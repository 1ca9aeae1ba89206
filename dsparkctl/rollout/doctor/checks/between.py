"""What only shows between hosts: both ends' MTU, the link's rate, the clocks, the versions."""

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Final

from dsparkctl.rollout.doctor.checks.link import set_mtu
from dsparkctl.rollout.doctor.finding import Finding, fail, ok, warn
from dsparkctl.rollout.doctor.observations import Installed, Login, Seen, Transfer
from dsparkctl.rollout.doctor.part import End, Part

SLOW_RTT_US: Final = 500.0
"""A direct link needs a fifth of it."""
ONE_STREAM_GBIT: Final = 20.0
"""More than this one TCP stream of Python does not show, whatever the link."""
WHOLE: Final = 0.7
"""Share of the expected rate from which a link counts as whole; below it, as half of one."""
HALF: Final = 0.35
MAX_SKEW_S: Final = 1.0

HERE: Final = "this machine"


def mtus(part: Part, seen: Seen, end: End, other: Seen) -> Iterator[Finding]:
    """Both ends of a link; `seen` is the Spark's."""
    ours, theirs = seen.interface_of(end.own), other.interface_of(end.peer)
    if ours is not None and theirs is not None and ours.mtu != theirs.mtu:
        yield fail(
            part.host,
            "mtu",
            f"{ours.name} has {ours.mtu}, {theirs.name} of {end.other} has {theirs.mtu}",
            f"the same at both: {set_mtu(ours, end.mtu)}; {set_mtu(theirs, end.mtu)}",
        )


def transfer(part: Part, end: End, seen: Transfer, timeout_ms: float) -> Iterator[Finding]:
    """What STEP-sized messages took from the Spark to the worker's host."""
    if seen.error is not None and not seen.rounds:
        todo = "see the lines above; a firewall may let the worker's own port through alone"
        yield warn(
            part.host, "rate", f"nothing could be measured to {end.peer}: {seen.error}", todo
        )
        return
    if seen.rtt_us:
        yield _rtt(part, end, median(seen.rtt_us))
    times = {one.n_bytes: median(one.us) for one in seen.rounds if one.us}
    if not times:
        said = f"{end.peer} took not one message of a STEP's size: {seen.error}"
        yield fail(part.host, "rate", said, "check MTU and cable; small messages do arrive")
        return
    shown = ", ".join(f"{n / 1e6:.2f} MB in {us / 1e3:.2f} ms" for n, us in times.items())
    smallest, largest = min(times), max(times)
    if times[smallest] > timeout_ms * 1e3:
        said = f"{shown}: not even the smallest STEP arrives within policy.timeout_ms"
        todo = f"{timeout_ms:g} ms are allowed; mend the link, or allow more"
        yield fail(part.host, "rate", said, todo)
        return
    gbit = largest * 8 / times[largest] / 1e3
    yield _rate(part, min(end.rate_gbit, ONE_STREAM_GBIT), gbit, shown)


def _rtt(part: Part, end: End, rtt_us: float) -> Finding:
    said = f"{rtt_us:.0f} us to {end.peer} and back"
    if rtt_us > SLOW_RTT_US:
        todo = "is it the direct link? look for a switch, power saving, interrupt coalescing"
        return warn(part.host, "rtt", f"{said}, under {SLOW_RTT_US:.0f} are usual", todo)
    return ok(part.host, "rtt", said)


def _rate(part: Part, expected_gbit: float, gbit: float, shown: str) -> Finding:
    said = f"{gbit:.1f} Gbit/s ({shown})"
    if gbit >= WHOLE * expected_gbit:
        return ok(part.host, "rate", said)
    if gbit >= HALF * expected_gbit:
        return warn(
            part.host,
            "rate",
            f"{said}, half of the {expected_gbit:g} that are expected",
            "one port may be half of a link: see both PCIe halves of the cage, speed and MTU",
        )
    todo = "see speed and MTU above, CPU governor and cable; or correct the link's rate_gbit"
    return warn(part.host, "rate", f"{said}, {expected_gbit:g} are expected", todo)


def clocks(logins: Mapping[str, Login], reference: str) -> Iterator[Finding]:
    """Each host's clock against one of them, that one's against this machine's; no surer than the
    way there and back lets us be."""
    known = {host: one.offset_s for host, one in logins.items() if one.offset_s is not None}
    for host, (least_s, most_s) in known.items():
        name = reference if reference in known and host != reference else HERE
        base = known[name] if name != HERE else (0.0, 0.0)
        low_s, high_s = least_s - base[1], most_s - base[0]
        sure_s = max(low_s, -high_s, 0.0)
        if sure_s > MAX_SKEW_S:
            way = "ahead of" if low_s > 0 else "behind"
            yield warn(
                host,
                "clock",
                f"at least {sure_s:.1f} s {way} {name}",
                "switch a time service on: timedatectl set-ntp true, or chrony with a local source",
            )
        else:
            bound_s = max(abs(low_s), abs(high_s))
            yield ok(host, "clock", f"within {bound_s:.2f} s of {name}")


def versions(seen: Mapping[str, Seen], ours: Installed) -> Iterator[Finding]:
    """What is installed on each host against this machine's own dsparkctl."""
    for host, one in seen.items():
        for place, found in (one.installed or {}).items():
            if found is None:
                yield ok(host, "version", f"{place}: not installed yet")
                continue
            said = f"{place}: {found.version} (contract {found.contract})"
            here = f"{ours.version} (contract {ours.contract}) is here"
            if found.contract != ours.contract:
                todo = "bring one release everywhere: dsparkctl deploy all"
                yield warn(host, "version", f"{said} speaks another contract, {here}", todo)
            elif found.version != ours.version:
                todo = "dsparkctl deploy all brings this one"
                yield warn(host, "version", f"{said}, {here}", todo)
            else:
                yield ok(host, "version", said)
