"""From an endpoint to a link: the one place that knows which transports are built in (§5)."""

from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.net.tcp import dial_tcp
from dsparkctl.net.transport import Deadline, Link, NotInThisBuild


def require_built(endpoint: Endpoint) -> None:
    """NotInThisBuild unless `dial` can try the endpoint."""
    if endpoint.scheme != "tcp":
        raise NotInThisBuild(
            f"{endpoint}: {endpoint.scheme} is not in this build; only tcp://HOST:PORT is"
        )


def dial(endpoint: Endpoint, deadline: Deadline) -> Link:
    """A connection to the listener; TransportError when there is none before the deadline."""
    require_built(endpoint)
    return dial_tcp(endpoint, deadline)
