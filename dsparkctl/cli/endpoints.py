"""Which listener `probe`, `stats` and `reset` may talk to, and how they talk to it (R37).

Decides the endpoint (named, or the first admin listener of dspark.yaml), refuses the engine's own
unless `--take-over` is given, and words every way in which an answer can fail. None of the three
ever sends HELLO: that would drop the engine's windows.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Annotated, Final

import typer

from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.cli.via import Dial
from dsparkctl.config import defaults
from dsparkctl.contract.codes import MAGIC, VERSION, FrameStatus, Op
from dsparkctl.contract.endpoint import DATA_PORT, RESERVED_PORT, Endpoint, parse_endpoint
from dsparkctl.contract.layout import pack
from dsparkctl.contract.records import AppHeader
from dsparkctl.net.ask import ask
from dsparkctl.net.dial import dial, require_built
from dsparkctl.net.transport import Deadline, Link, NotInThisBuild, TransportError

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


def choose_endpoint(text: str | None, config: Path | None, *, take_over: bool) -> Endpoint:
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
        require_built(endpoint)
    except NotInThisBuild as error:
        raise Stop(Exit.USAGE, str(error)) from None
    if not take_over and (reason := _engines_own(endpoint, data)):
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


def _engines_own(endpoint: Endpoint, data: Endpoint) -> str:
    """Why the endpoint must be taken for the engine's, or an empty string."""
    if endpoint.port == data.port and (
        data.is_wildcard or not _ips(endpoint.host).isdisjoint(_ips(data.host))
    ):
        return "the data listener"
    return _PORTS.get(endpoint.port, "")


def _ips(host: str) -> set[str]:
    """The name itself and every address it stands for here, in one spelling."""
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        found = set()
    return {host.lower(), *map(_plain, found)}


def _plain(text: str) -> str:
    try:
        address = ip_address(text)
    except ValueError:
        return text
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


# --- talking --------------------------------------------------------------------------------------


@contextmanager
def in_one_line() -> Iterator[None]:
    """Inside, a transport that fails ends the command with its one line."""
    try:
        yield
    except TransportError as error:
        raise Stop(Exit.FAILED, str(error)) from None


def request(link: Link, op: Op, body: bytes, timeout_s: float, seq: int = 1) -> bytes:
    """The body of the reply to one message outside any session (R1, R2, R39).

    TransportError when nothing usable came back, Stop when what came back is not OK.
    """
    head = pack(AppHeader(MAGIC, VERSION, op, seq, 0, len(body), 0, 0))
    reply = ask(link, [head, body], Deadline(timeout_s))
    if reply.header.status:
        raise _refused(link.endpoint, op, reply.header.status)
    return bytes(reply.body)


def request_once(
    endpoint: Endpoint, op: Op, body: bytes, timeout_s: float, by: Dial = dial
) -> bytes:
    """The same on a connection of its own; every failure is a Stop."""
    with in_one_line():
        link = by(endpoint, Deadline(timeout_s))
        try:
            return request(link, op, body, timeout_s)
        finally:
            link.close()


def _refused(endpoint: Endpoint, op: Op, status: int) -> Stop:
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
