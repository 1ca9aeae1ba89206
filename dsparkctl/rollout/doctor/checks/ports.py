"""The worker's ports: free, or its own already."""

from collections.abc import Iterator

from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.rollout.doctor.finding import Finding, fail, ok, warn
from dsparkctl.rollout.doctor.observations import Holder, Seen
from dsparkctl.rollout.doctor.part import Part
from dsparkctl.rollout.layout import UNIT


def ports(part: Part, seen: Seen) -> Iterator[Finding]:
    if part.worker is None or seen.ports is None:
        return
    named = [("worker.listen", part.worker.listen)]
    named += [(f"worker.admin[{i}]", one) for i, one in enumerate(part.worker.admin)]
    for key, endpoint in named:
        holder = next((one for one in seen.ports if _collides(endpoint, one)), None)
        yield _port(part, key, endpoint, holder)


def _port(part: Part, key: str, endpoint: Endpoint, holder: Holder | None) -> Finding:
    if holder is None:
        return ok(part.host, "port", f"{endpoint} is free")
    who = f"pid {holder.pid}, {holder.command}"
    if holder.pid is None:
        return warn(
            part.host,
            "port",
            f"somebody listens on {endpoint}, and this account may not see who",
            f"sudo ss -ltnp sport = :{endpoint.port}",
        )
    if holder.unit == UNIT:
        return ok(part.host, "port", f"{endpoint} is held by {UNIT} (pid {holder.pid})")
    if "dspark_worker" in (holder.command or ""):
        said = f"{endpoint} is held by a worker that {UNIT} did not start ({who})"
        return fail(part.host, "port", said, f"end it: sudo kill {holder.pid}")
    said = f"{endpoint} is held by somebody else ({who})"
    return fail(part.host, "port", said, f"end it, or give {key} another port")


def _collides(endpoint: Endpoint, holder: Holder) -> bool:
    if holder.port != endpoint.port:
        return False
    address = holder.address.removeprefix("::ffff:")
    listens_everywhere = Endpoint("tcp", address, endpoint.port).is_wildcard
    return endpoint.is_wildcard or listens_everywhere or address == endpoint.host
