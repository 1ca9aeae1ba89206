"""libfabric for `o1tcp://` and `o1rdma://` (§5): there, new enough, and with its provider."""

from collections.abc import Iterator
from typing import Final

from dsparkctl.rollout.doctor.finding import Finding, ok, warn
from dsparkctl.rollout.doctor.observations import Seen
from dsparkctl.rollout.doctor.part import Part

_PROVIDER: Final = {"o1tcp": "tcp", "o1rdma": "verbs"}


def fabric(part: Part, seen: Seen) -> Iterator[Finding]:
    """Of the two hosts that speak ofl; nothing where the endpoint is tcp."""
    found, provider = seen.libfabric, _PROVIDER.get(part.scheme)
    if provider is None or found is None or not (part.worker or part.rank == 0):
        return
    if found.version is None:
        todo = f"install libfabric1, or use a tcp:// endpoint instead of {part.scheme}://"
        yield warn(part.host, "fabric", "no libfabric.so.1", todo)
        return
    missing = [
        package
        for package, is_there in (("libfabric-dev", found.has_headers), ("gcc", found.has_compiler))
        if not is_there
    ]
    listed = "unknown, no fi_info" if found.providers is None else ", ".join(found.providers)
    said = f"libfabric {found.version}; providers with FI_EP_MSG: {listed or 'none'}"
    if found.providers is not None and provider not in found.providers:
        todo = f"{part.scheme}:// needs the provider {provider}: its device, or its package"
        yield warn(part.host, "fabric", said, todo)
    elif missing:
        todo = f"install {' and '.join(missing)} where `dsparkctl fabric build` is to run"
        yield warn(part.host, "fabric", said, todo)
    else:
        yield ok(part.host, "fabric", said)
