"""PINGs measured on a Spark: over the direct link, with nothing there but Python 3.11's library.

Decides what goes along: our contract and net, as they are here, in a zip that the host's Python
imports from. A host's older Python cannot read them, and says so.
"""

import base64
import io
import zipfile
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Final

from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.rollout.host import Host
from dsparkctl.rollout.programs import ask

_ROOMS: Final = ("contract", "net")
_FILES: Final = ("__init__.py",)


def rooms() -> bytes:
    """A zip of the rooms that speak the contract; importable, and standard library alone."""
    held = io.BytesIO()
    top = files("dsparkctl")
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in _FILES:
            archive.writestr(f"dsparkctl/{name}", top.joinpath(name).read_bytes())
        for room in _ROOMS:
            for one in top.joinpath(room).iterdir():
                if _is_source(one):
                    archive.writestr(f"dsparkctl/{room}/{one.name}", one.read_bytes())
    return held.getvalue()


def _is_source(one: Traversable) -> bool:
    return one.is_file() and one.name.endswith(".py")


def probe_from(
    host: Host, endpoint: Endpoint, *, count: int, pause_s: float, payload: int, timeout_s: float
) -> dict[str, Any]:
    """`rtt_us` and `lost`, measured there; HostError when the host cannot measure."""
    asked = {
        "package": base64.b64encode(rooms()).decode(),
        "endpoint": str(endpoint),
        "count": count,
        "pause_s": pause_s,
        "payload_bytes": payload,
        "timeout_s": timeout_s,
    }
    return ask(host, "probe_from", asked, timeout_s=30.0 + count * (pause_s + timeout_s))
