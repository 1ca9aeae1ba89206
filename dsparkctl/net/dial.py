"""From an endpoint to a link: the one place that knows which transports there are (§5)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.net.tcp import addresses, dial_tcp
from dsparkctl.net.transport import Broken, Deadline, Link


def require_usable(endpoint: Endpoint) -> None:
    """NotInThisBuild unless `dial` can try the endpoint: libfabric may be missing here."""
    if endpoint.scheme != "tcp":
        from dsparkctl.net.fabric.library import require  # who speaks TCP needs none of it

        require(endpoint)


def resolved(endpoint: Endpoint) -> Sequence[Endpoint]:
    """The endpoint by each address that its name stands for now; Broken when there is none.

    Waits as long as the system's resolver does: for those who dial where nobody may wait so long.
    """
    hosts = dict.fromkeys(str(address[0]) for _, address in addresses(endpoint))
    if not hosts:
        raise Broken(f"{endpoint}: names no address to connect to")
    return [replace(endpoint, host=host) for host in hosts]


def dialler(
    endpoint: Endpoint, spin_s: float = 0.0, staging: memoryview | None = None
) -> Callable[[Deadline], Link]:
    """What connects to the listener, as often as it is called: TransportError when there is no
    connection before the deadline.

    `spin_s`: how long an exchange looks for its reply before it sleeps. `staging`: writable memory
    that messages lie in; carriers that need it registered do so once.
    """
    if endpoint.scheme == "tcp":
        return partial(dial_tcp, endpoint, spin_s=spin_s)
    from dsparkctl.net.fabric.link import FabricDialler

    return FabricDialler(endpoint, spin_s, staging)


def dial(endpoint: Endpoint, deadline: Deadline, spin_s: float = 0.0) -> Link:
    """A connection to the listener; TransportError when there is none before the deadline."""
    return dialler(endpoint, spin_s)(deadline)
