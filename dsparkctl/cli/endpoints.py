"""Which listener `probe`, `stats` and `reset` may talk to, and how they talk to it (R37).

Decides the endpoint (named, or the first admin listener of dspark.yaml), refuses the engine's own
unless `--take-over` is given, and words every way in which an answer can fail. None of the three
ever sends HELLO: that would drop the engine's windows.
"""

import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Annotated, Final

import typer

from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.config import defaults
from dsparkctl.contract.codes import FrameStatus, Op
from dsparkctl.contract.endpoint import DATA_PORT, RESERVED_PORT, Endpoint, parse_endpoint
from dsparkctl.net.dial import require_usable
from dsparkctl.net.ping import Refused
from dsparkctl.net.transport import NotInThisBuild, TransportError


class NoSsh(TransportError):  # noqa: N818 -- what happened
    """The way to the endpoint leads over SSH, and SSH fails."""


Addresses = Callable[[str], Collection[str]]
"""Every address that a name stands for, as text, on the machine that will connect."""

Target = Annotated[
    str | None,
    typer.Argument(
        metavar="[ENDPOINT]",
        help="tcp://HOST:PORT; by itself the first admin listener of dspark.yaml.",
        show_default=False,
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", envvar="DSPARK_CONFIG", help="Instead of ./dspark.yaml."
    ),
]
TakeOver = Annotated[
    bool,
    typer.Option("--take-over", help="Talk to the data listener: this cuts off the engine (§7.5)."),
]

_PORTS: Final = {
    DATA_PORT: "the engine's port (§5)",
    RESERVED_PORT: "reserved for the second engine link (§5)",
}


def addresses_here(name: str) -> Collection[str]:
    """What the name stands for on this machine; empty when it is not known."""
    try:
        return {str(info[4][0]) for info in socket.getaddrinfo(name, None)}
    except (OSError, UnicodeError):
        return ()


def choose_endpoint(
    text: str | None,
    config: Path | None,
    *,
    take_over: bool,
    addresses: Addresses = addresses_here,
) -> Endpoint:
    """The endpoint to talk to; Stop(USAGE), ConfigError, ReadError or EndpointError otherwise."""
    named = None if text is None else parse_endpoint(text)
    path = config or defaults.CONFIG
    configured = config is not None or path.exists()
    data, admin = _listeners(path) if configured else (defaults.LISTEN, (defaults.ADMIN,))
    if named is None and not admin:
        raise Stop(Exit.USAGE, f"{path}: worker.admin is empty: name an ENDPOINT")
    endpoint = named or admin[0]
    if endpoint.is_wildcard or not endpoint.port:
        raise Stop(Exit.USAGE, f"{endpoint} is for listening: name an address and a port")
    try:
        require_usable(endpoint)
    except NotInThisBuild as error:
        raise Stop(Exit.USAGE, str(error)) from None
    if not take_over and (reason := _engines_own(endpoint, data, addresses)):
        other = (
            f"use the admin listener {admin[0]}, or " if admin and named else "name another, or "
        )
        raise Stop(
            Exit.USAGE,
            f"{endpoint} is {reason}: connecting closes the engine's connection, newest wins "
            f"(R37); {other}--take-over",
        )
    return endpoint


def _listeners(path: Path) -> tuple[Endpoint, tuple[Endpoint, ...]]:
    # pydantic and yaml cost more than a round trip: only a command with a configuration pays.
    from dsparkctl.config.source import load_fleet

    worker = load_fleet(path).worker
    return worker.listen, worker.admin


def _engines_own(endpoint: Endpoint, data: Endpoint, addresses: Addresses) -> str:
    """Why the endpoint must be taken for the engine's, or an empty string."""
    if endpoint.port == data.port and (
        data.is_wildcard
        or not _spellings(endpoint.host, addresses).isdisjoint(_spellings(data.host, addresses))
    ):
        return "the data listener"
    return _PORTS.get(endpoint.port, "")


def _spellings(host: str, addresses: Addresses) -> set[str]:
    """The name itself and every address it stands for, each in one spelling."""
    return {_plain(host.lower()), *map(_plain, addresses(host))}


def _plain(text: str) -> str:
    try:
        address = ip_address(text)
    except ValueError:
        return text
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


# --- failing --------------------------------------------------------------------------------------


@contextmanager
def in_one_line() -> Iterator[None]:
    """Inside, a transport that fails and a peer that refuses end the command with their line."""
    try:
        yield
    except TransportError as error:
        raise Stop(Exit.SSH if isinstance(error, NoSsh) else Exit.FAILED, str(error)) from None
    except Refused as error:
        raise refused(error.endpoint, error.op, error.status) from None


def refused(endpoint: Endpoint, op: Op, status: int) -> Stop:
    """§9.1 in words, and what to do."""
    match status:
        case FrameStatus.BAD_VERSION:
            code = Exit.MISMATCH
            said = "it speaks another version of the contract; install the same release on both"
        case FrameStatus.NO_SESSION:
            code = Exit.FAILED
            said = (
                f"this is the data listener, which takes {op.name} from the engine's session only;"
                " use the admin listener"
            )
        case FrameStatus.UNSUPPORTED_OP:
            code = Exit.FAILED
            said = f"it does not serve {op.name}; is this the worker's admin listener?"
        case FrameStatus.INTERNAL:
            code = Exit.FAILED
            said = "the worker failed on it; its log says why"
        case _:
            code = Exit.FAILED
            said = "the worker and this dsparkctl disagree; install the same release on both"
    known = {known.value: known.name for known in FrameStatus}
    name = known.get(status, f"unknown status {status}")
    return Stop(code, f"{endpoint}: {op.name} was refused with {name}: {said}")
