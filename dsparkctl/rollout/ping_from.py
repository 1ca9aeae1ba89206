"""Round trips as a host measures them: over the direct link, when the host is a Spark (R38).

Decides where the worker is reached from a Spark, and how long that may take. What is measured, and
how, is `net.ping`'s, which runs there.
"""

import json
from dataclasses import asdict
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dsparkctl.config.fleet import Fleet
from dsparkctl.contract.codes import Op
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.net.ping import Course, Refused, Tally
from dsparkctl.net.transport import Broken
from dsparkctl.rollout.host import Host, HostError
from dsparkctl.rollout.parcel import PYTHON, parcel

LONGEST_S: Final = 600.0
_SPARE_S: Final = 30.0
"""For what is no pause between two PINGs: connecting, their way, losses."""

_ROOMS: Final = ("dsparkctl.contract", "dsparkctl.net")

Text = Annotated[str, Field(max_length=1000)]


class _Said(BaseModel):
    """What the program says; the host is believed no more than any peer."""

    model_config = ConfigDict(extra="forbid")

    rtt_us: tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...] = Field(
        max_length=1_000_000
    )
    lost: tuple[Text, ...] = Field(max_length=1_000_000)
    failed: Text | None = None
    refused: tuple[int, int] | None = None


def link_endpoint(fleet: Fleet, name: str) -> Endpoint | None:
    """The worker's admin listener on the direct link of this host, dialled from its own end."""
    for link in fleet.links:
        for admin in fleet.worker.admin:
            if link.host == name and (admin.host == link.peer or admin.is_wildcard):
                return Endpoint("tcp", link.peer, admin.port, bind=link.bind)
    return None


def ping_from(host: Host, endpoint: Endpoint, course: Course, tally: Tally) -> None:
    """Fill the tally on the host, within 30 s more than the pauses, LONGEST_S at most.

    HostError when the host cannot run it, Broken when there is no connection from there, Refused
    when the worker says so.
    """
    within_s = min(LONGEST_S, course.n * course.pause_s + _SPARE_S)
    asked = {"endpoint": str(endpoint), "course": asdict(course), "within_s": within_s}
    program = parcel("dsparkctl.rollout.ping_program", _ROOMS)
    longest_s = within_s + 2 * course.timeout_s + _SPARE_S
    ran = host.check((*PYTHON, json.dumps(asked)), stdin=program, timeout_s=longest_s)
    try:
        said = _Said.model_validate_json(ran.stdout.rstrip().rpartition(b"\n")[2])
    except ValidationError:
        raise HostError(f"{host.name}: its python3 said something else than a tally") from None
    tally.rtt_us.extend(said.rtt_us)
    tally.lost.extend(said.lost)
    if said.failed is not None:
        raise Broken(said.failed)
    if said.refused is not None:
        raise Refused(endpoint, Op(said.refused[0]), said.refused[1])
