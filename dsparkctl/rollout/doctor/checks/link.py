"""One end of a direct link: its address, the route to the other end, and what it carries (§4.1)."""

from collections.abc import Iterator

from dsparkctl.rollout.doctor.finding import Finding, fail, ok, warn
from dsparkctl.rollout.doctor.observations import Interface, Seen
from dsparkctl.rollout.doctor.part import End, Part


def link(part: Part, seen: Seen) -> Iterator[Finding]:
    if seen.interfaces is None:
        return
    for end in part.ends:
        interface = seen.interface_of(end.own)
        if interface is None:
            yield _no_address(part, seen, end)
        elif not interface.is_up:
            yield fail(
                part.host,
                "address",
                f"{end.own} is on {interface.name}, which is down or has no carrier",
                f"check the cable, then sudo ip link set dev {interface.name} up",
            )
        else:
            yield ok(part.host, "address", f"{end.own} is on {interface.name}")
            yield from _route(part, seen, end, interface)
            yield _mtu(part, end, interface)
            yield from _ping(part, seen, end, interface)
            yield from _speed(part, end, interface)


def _no_address(part: Part, seen: Seen, end: End) -> Finding:
    idle = [one.name for one in seen.interfaces or () if one.is_up and not one.addresses]
    name = idle[0] if len(idle) == 1 else "INTERFACE"
    up = f" (up, and without an address: {', '.join(idle[:6])})" if idle else ""
    return fail(
        part.host,
        "address",
        f"no interface has {end.own}{up}",
        f"sudo ip address add {end.own}/24 dev {name}, and in the system's network configuration",
    )


def _route(part: Part, seen: Seen, end: End, interface: Interface) -> Iterator[Finding]:
    route = (seen.routes or {}).get(end.peer)
    if route is None:
        return
    todo = f"sudo ip route replace {end.peer}/32 dev {interface.name} src {end.own}"
    if route.interface is None:
        yield fail(part.host, "route", f"none to {end.peer}: {route.error}", todo)
    elif route.interface != interface.name:
        said = f"to {end.peer} it leads over {route.interface}, {end.own} is on {interface.name}"
        yield fail(part.host, "route", said, todo)
    elif route.gateway:
        said = f"to {end.peer} it leads through {route.gateway}, which is no direct link"
        yield fail(part.host, "route", said, todo)
    else:
        yield ok(part.host, "route", f"to {end.peer} it leads over {interface.name}, directly")


def _mtu(part: Part, end: End, interface: Interface) -> Finding:
    said = f"{interface.name} has {interface.mtu}"
    if interface.mtu < end.mtu:
        return fail(part.host, "mtu", f"{said}, {end.mtu} is wanted", set_mtu(interface, end.mtu))
    if interface.mtu > end.mtu:
        todo = f"{set_mtu(interface, end.mtu)}; or write mtu: {interface.mtu}"
        return warn(part.host, "mtu", f"{said}, dspark.yaml says {end.mtu}", todo)
    return ok(part.host, "mtu", said)


def _ping(part: Part, seen: Seen, end: End, interface: Interface) -> Iterator[Finding]:
    ping = (seen.pings or {}).get(end.peer)
    if ping is None:
        return
    if ping.is_missing:
        said = f"nothing could be sent to {end.peer}: {ping.said}"
        yield warn(part.host, "ping", said, "install it: sudo apt install iputils-ping")
    elif ping.whole_ok:
        yield ok(part.host, "ping", f"{end.mtu} bytes reach {end.peer} in one piece")
    elif ping.small_ok:
        said = f"small packets reach {end.peer}, {end.mtu} bytes in one piece do not: {ping.said}"
        todo = f"at both ends, and on what lies between: {set_mtu(interface, end.mtu)}"
        yield fail(part.host, "ping", said, todo)
    else:
        said = f"nothing comes back from {end.peer}: {ping.said}"
        todo = "check the cable, the address at the other end, and that no firewall drops ICMP"
        yield fail(part.host, "ping", said, todo)


def _speed(part: Part, end: End, interface: Interface) -> Iterator[Finding]:
    if interface.speed_mbit is None:
        return
    said = f"{interface.name} has negotiated {interface.speed_mbit / 1000:g} Gbit/s"
    if interface.speed_mbit < end.rate_gbit * 1000:
        yield warn(
            part.host,
            "speed",
            f"{said}, {end.rate_gbit:g} are expected",
            "check cable and port; a port may be one half of a QSFP cage, each half with its own",
        )
    else:
        yield ok(part.host, "speed", said)


def set_mtu(interface: Interface, mtu: int) -> str:
    """The command."""
    return f"sudo ip link set dev {interface.name} mtu {mtu}"
