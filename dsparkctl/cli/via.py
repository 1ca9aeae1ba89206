"""How `probe`, `stats` and `reset` get to an address that is not local: through a host's SSH (R37).

Decides when: `--via HOST` says so, and a `dspark.yaml` whose worker runs on one of its hosts says
so for that worker's own listeners. Everybody else is dialled from here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from dsparkctl.cli import render
from dsparkctl.config import defaults
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.net.dial import dial
from dsparkctl.net.tcp import TcpLink
from dsparkctl.net.transport import Broken, Deadline, Link

Dial = Callable[[Endpoint, Deadline], Link]

Via = Annotated[
    str | None,
    typer.Option(metavar="HOST", help="Go through this host's SSH; it dials the endpoint."),
]


@contextmanager
def dialling(via: str | None, config: Path | None, *, is_named: bool) -> Iterator[Dial]:
    """The way to dial; `is_named` says that a person named the endpoint."""
    path = config or defaults.CONFIG
    if via is None and (is_named or not path.exists()):
        yield dial
        return
    # paramiko and pydantic cost more than a round trip: only a way through SSH pays.
    from dsparkctl.config.source import load_fleet

    fleet = load_fleet(path) if path.exists() else None
    host = via or (fleet and fleet.worker.host)
    if not host:
        yield dial
        return
    from dsparkctl.cli.remote import reaching
    from dsparkctl.rollout.host import HostError, SshError

    if via is None:
        render.note(f"through {host}, where dspark.yaml says that the worker runs")
    with reaching(fleet) as hosts:
        hosts[host].run(("true",))  # an SSH that does not work ends the command, with its own code

        def through(endpoint: Endpoint, deadline: Deadline) -> Link:
            try:
                sock = hosts[host].connect(
                    endpoint.host, endpoint.port, timeout_s=deadline.timeout_s
                )
            except SshError as error:
                raise Broken(str(error)) from None
            except HostError as error:
                raise Broken(f"{endpoint}: {error}") from None
            return TcpLink(sock, endpoint)

        yield through
