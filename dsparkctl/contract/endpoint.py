"""Where a listener is found: `tcp://HOST:PORT?bind=ADDR` and the two spellings of `ofl` (§5).

Decides what a well-formed endpoint is. Refuses to resolve a name or open anything.
"""

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

SCHEMES: Final = ("tcp", "o1tcp", "o1rdma")
"""The contract's own TCP stub, and lane O1's `ofl` over TCP and over RDMA RC (§5)."""

DATA_PORT: Final = 18620
"""The drafter on the Spark A link (§5)."""
RESERVED_PORT: Final = 18621
"""Reserved for the Spark B link (§5)."""
ADMIN_PORT: Final = 18630
"""Ours: the admin listener (R37)."""

MAX_ENDPOINT_CHARS: Final = 512

_FORM: Final = re.compile(
    r"(?P<scheme>[^:/?#]*)://(?P<host>\[[^\[\]]*\]|[^\[\]:/?#@]*)(?::(?P<port>[^:/?#]*))?"
    r"(?:\?(?P<query>[^#]*))?"
)
_NAME: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)", re.ASCII)
_LIKE_A_NUMBER: Final = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*", re.ASCII)
_PORT: Final = re.compile(r"[0-9]{1,5}", re.ASCII)
_ZONE: Final = re.compile(r"[A-Za-z0-9_.-]{1,15}", re.ASCII)


class EndpointError(ValueError):
    """Text that is not an endpoint; the message is one line."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A parsed endpoint; `str()` writes it back."""

    scheme: str
    host: str
    """A name or an address, IPv6 without its brackets; empty: every address."""
    port: int
    """0..65535; 0 asks a listener for a free port."""
    bind: str | None = None
    """The local address from which a client connects (§5)."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        bind = "" if self.bind is None else f"?bind={self.bind}"
        return f"{self.scheme}://{host}:{self.port}{bind}"

    @property
    def is_wildcard(self) -> bool:
        """Whether listening here means listening on every address of the machine."""
        if not self.host:
            return True
        address = _address(self.host)
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return address is not None and address.is_unspecified


def parse_endpoint(text: str) -> Endpoint:
    """The endpoint that `text` spells, or EndpointError."""
    found = _FORM.fullmatch(text) if len(text) <= MAX_ENDPOINT_CHARS else None
    if found is None:
        raise EndpointError(f"expected tcp://HOST:PORT, got {_quote(text)}")
    scheme = found["scheme"]
    if scheme not in SCHEMES:
        raise EndpointError(f"expected one of {', '.join(SCHEMES)} before ://, got {_quote(text)}")
    return Endpoint(
        scheme, _host(text, found["host"]), _port(text, found["port"]), _bind(text, found["query"])
    )


def _host(text: str, host: str) -> str:
    if host.startswith("["):
        address = _address(host[1:-1])
        if not isinstance(address, IPv6Address):
            raise EndpointError(f"expected an IPv6 address in the brackets, got {_quote(text)}")
        return str(address)
    if not host:
        return host
    labels = host.removesuffix(".").split(".")
    # Resolvers read 0, 0x0 and 127.1 as addresses too: what looks like one must be written whole.
    if _LIKE_A_NUMBER.fullmatch(labels[-1]):
        if _address(host) is None:
            raise EndpointError(f"expected a whole IPv4 address, got {_quote(text)}")
    elif len(host) > 253 or not all(_NAME.fullmatch(label) for label in labels):
        raise EndpointError(f"expected a host name or address, got {_quote(text)}")
    return host


def _port(text: str, port: str | None) -> int:
    if port is None:
        raise EndpointError(f"expected a port after the host, got {_quote(text)}")
    if not _PORT.fullmatch(port) or int(port) > 65535:
        raise EndpointError(f"expected a port between 0 and 65535, got {_quote(text)}")
    return int(port)


def _bind(text: str, query: str | None) -> str | None:
    if query is None:
        return None
    bind: str | None = None
    for part in query.split("&"):
        key, equals, value = part.partition("=")
        if key != "bind" or not equals:
            raise EndpointError(f"expected ?bind=ADDR and nothing else, got {_quote(text)}")
        if bind is not None:
            raise EndpointError(f"expected one bind=, got {_quote(text)}")
        address = _address(value.removeprefix("[").removesuffix("]"))
        if address is None:
            raise EndpointError(f"expected an IP address after bind=, got {_quote(text)}")
        bind = str(address)
    return bind


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(host)
    except ValueError:
        return None
    zone = address.scope_id if isinstance(address, IPv6Address) else None
    return address if zone is None or _ZONE.fullmatch(zone) else None


def _quote(text: str) -> str:
    shown = ascii(text)[1:-1]
    return f'"{shown}"' if len(shown) <= 80 else f'"{shown[:76]}..."'
