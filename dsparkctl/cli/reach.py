"""How `probe`, `stats` and `reset` reach a listener: from here, or as one of the hosts sees it.

Decides the way: `--via`, or, where no endpoint is named and the worker runs on a host, through
that host. Names and addresses are then the host's. Refuses to know SSH: `rollout` carries it.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsparkctl.cli import render
from dsparkctl.cli.endpoints import NoSsh, choose_endpoint, in_one_line
from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.config import defaults
from dsparkctl.contract.codes import Op
from dsparkctl.contract.endpoint import Endpoint, parse_endpoint
from dsparkctl.net.dial import dial
from dsparkctl.net.ping import Course, Tally, measure, request
from dsparkctl.net.transport import Broken, Deadline, Link

if TYPE_CHECKING:
    from dsparkctl.config.fleet import Fleet
    from dsparkctl.rollout.host import Host

Via = Annotated[
    str | None,
    typer.Option(
        "--via",
        metavar="HOST",
        help="Connect from this host of dspark.yaml, or ssh alias; by itself worker.host.",
    ),
]

From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="HOST",
        help="Measure on this host, over its direct link; it needs Python 3.11 and nothing else.",
    ),
]

_RESOLVE_S = 10.0


@dataclass
class Reach:
    """A listener, and the way to it. `str()` names both."""

    endpoint: Endpoint
    via: "Tunnel | None" = None
    is_measured_there: bool = False
    """Whether the host itself measures, and not this machine through it."""

    def __str__(self) -> str:
        if self.via is None:
            return str(self.endpoint)
        return f"{self.endpoint} {'from' if self.is_measured_there else 'via'} {self.via.name}"

    def facts(self) -> dict[str, str]:
        """The same for JSON."""
        if self.via is None:
            return {"endpoint": str(self.endpoint)}
        way = "measured_on" if self.is_measured_there else "via"
        return {"endpoint": str(self.endpoint), way: self.via.name}

    def dial(self, deadline: Deadline) -> Link:
        """A new link to it; TransportError, or its NoSsh, when there is none."""
        if self.via is None:
            return dial(self.endpoint, deadline)
        return self.via.dial(self.endpoint, deadline)

    def request_once(self, op: Op, body: bytes, timeout_s: float) -> bytes:
        """The reply's body, on a connection of its own; every failure is a Stop."""
        with in_one_line():
            link = self.dial(Deadline(timeout_s))
            try:
                return request(link, op, body, timeout_s)
            finally:
                link.close()

    def measure(self, course: Course, tally: Tally) -> None:
        """Fill the tally; TransportError or Refused as `net.ping` raises them."""
        if self.via is not None and self.is_measured_there:
            self.via.measure(self.endpoint, course, tally)
        else:
            measure(course, self.dial, tally)

    def close(self) -> None:
        """End what the way needed."""
        if self.via is not None:
            self.via.drop()


@dataclass
class Tunnel:
    """Connections that begin on a host; after SSH has failed, the next one opens SSH anew."""

    name: str
    open: "Callable[[], Host]"
    _host: "Host | None" = field(default=None, repr=False)

    def host(self) -> "Host":
        """The open host; HostError when SSH does not get there."""
        if self._host is None:
            self._host = self.open()
        return self._host

    def drop(self) -> None:
        if self._host is not None:
            self._host.close()
            self._host = None

    def dial(self, endpoint: Endpoint, deadline: Deadline) -> Link:
        """A link to the endpoint as the host reaches it."""
        from dsparkctl.net.tcp import TcpLink
        from dsparkctl.rollout.host import HostError, SshError

        where = f"{endpoint} via {self.name}"
        try:
            host = self.host()
            sock = host.connect(endpoint.host, endpoint.port, timeout_s=max(0.001, deadline.left_s))
        except SshError as error:
            self.drop()
            raise NoSsh(str(error)) from None
        except (HostError, OSError) as error:
            raise Broken(f"{where}: {error}") from None
        return TcpLink(sock, endpoint)

    def measure(self, endpoint: Endpoint, course: Course, tally: Tally) -> None:
        """The same on the host; NoSsh when it cannot be reached, Stop when it cannot do it."""
        from dsparkctl.rollout.host import HostError, SshError
        from dsparkctl.rollout.ping_from import ping_from

        try:
            ping_from(self.host(), endpoint, course, tally)
        except SshError as error:
            raise NoSsh(str(error)) from None
        except HostError as error:
            raise Stop(Exit.FAILED, str(error)) from None

    def addresses(self, name: str) -> Collection[str]:
        """What a name stands for on the host; empty when it is not known there."""
        if _is_address(name):
            return (name,)
        from dsparkctl.rollout.host import HostError

        try:
            ran = self.host().run(("getent", "ahosts", name), timeout_s=_RESOLVE_S)
        except HostError as error:
            raise Stop(Exit.SSH, str(error)) from None
        return {line.split()[0] for line in ran.text.splitlines() if line.strip()}


def find(
    text: str | None,
    config: Path | None,
    *,
    take_over: bool,
    via: str | None,
    origin: str | None = None,
) -> Reach:
    """The listener to talk to, guarded as `choose_endpoint` guards it, and the way to it.

    `origin` is the host that measures. A way that nobody asked for is said on stderr.
    """
    if via is not None and origin is not None:
        raise Stop(Exit.USAGE, "--via goes through a host, --from measures on it: say one of them")
    fleet = _fleet(config)
    name = origin or via or (fleet.worker.host if fleet and text is None else None)
    if name is None:
        return Reach(choose_endpoint(text, config, take_over=take_over))
    if origin is not None and text is None:
        text = _on_the_link(fleet, origin)
    elif origin is None and text is not None and parse_endpoint(text).bind is not None:
        raise Stop(Exit.USAGE, f"{text}: ?bind= has no meaning on the way through a host's SSH")
    tunnel = Tunnel(name, partial(open_host, fleet, name))
    endpoint = choose_endpoint(text, config, take_over=take_over, addresses=tunnel.addresses)
    if origin is None and via is None:
        render.note(f"{endpoint}: through the SSH of {name}, where the worker runs")
    return Reach(endpoint, tunnel, is_measured_there=origin is not None)


def _on_the_link(fleet: "Fleet | None", name: str) -> str:
    from dsparkctl.rollout.ping_from import link_endpoint

    if fleet is None:
        raise Stop(Exit.USAGE, f"--from {name}: name an ENDPOINT; there is no dspark.yaml here")
    found = link_endpoint(fleet, name)
    if found is None:
        raise Stop(
            Exit.USAGE,
            f"--from {name}: worker.admin has no listener on a link of {name}; add one on the "
            "link's peer address (R38), or name an ENDPOINT",
        )
    return str(found)


def _fleet(config: Path | None) -> "Fleet | None":
    """The configuration, where there is one: pydantic costs more than a round trip."""
    path = config or defaults.CONFIG
    if config is None and not path.exists():
        return None
    from dsparkctl.config.source import load_fleet

    return load_fleet(path)


def open_host(fleet: "Fleet | None", name: str) -> "Host":
    """The same as `cli.ssh`; paramiko is slow to load, and only a way through SSH pays for it."""
    from dsparkctl.cli import ssh

    return ssh.open_host(fleet, name)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
