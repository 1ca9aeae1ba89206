"""From an endpoint to a link: the one place that knows which transports are built in (§5)."""

from collections.abc import Sequence
from dataclasses import replace

from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.net.tcp import addresses, dial_tcp
from dsparkctl.net.transport import Broken, Deadline, Link, NotInThisBuild


def require_built(endpoint: Endpoint) -> None:
    """NotInThisBuild unless `dial` can try the endpoint."""
    if endpoint.scheme != "tcp":
        raise NotInThisBuild(
            f"{endpoint}: {endpoint.scheme} is not in this build; only tcp://HOST:PORT is"
        )


def resolved(endpoint: Endpoint) -> Sequence[Endpoint]:
    """The endpoint by each address that its name stands for now; Broken when there is none.

    Waits as long as the system's resolver does: for those who dial where nobody may wait so long.
    """
    hosts = dict.fromkeys(str(address[0]) for _, address in addresses(endpoint))
    if not hosts:
        raise Broken(f"{endpoint}: names no address to connect to")
    return [replace(endpoint, host=host) for host in hosts]


def dial(endpoint: Endpoint, deadline: Deadline, spin_s: float = 0.0) -> Link:
    """A connection to the listener; TransportError when there is none before the deadline.

    `spin_s`: how long an exchange looks for its reply before it sleeps.
    """
    require_built(endpoint)
    return dial_tcp(endpoint, deadline, spin_s)
