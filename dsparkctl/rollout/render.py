"""The worker's unit and configuration as files on its host, from `dspark.yaml`.

Decides what depends on it: device nodes, ports, peers, paths. Pure. What is always so stands in
`templates/dspark-worker.service`, with its reasons.
"""

from importlib.resources import files
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import yaml

from dsparkctl.config.fleet import Fleet
from dsparkctl.config.worker import WorkerSettings
from dsparkctl.rollout.layout import UNIT, Layout

_HEAD: Final = (
    "# Written by dsparkctl from the operator's dspark.yaml; another deploy replaces it.\n"
)
_WAIT_FOR_ADDRESS_S: Final = 86_400
"""A link that is plugged in within a day is waited for."""


class RenderError(ValueError):
    """A `dspark.yaml` that does not say enough for a rollout; one line."""


def worker_config(fleet: Fleet) -> bytes:
    """The worker's own `dspark.yaml`: its section with every default filled in."""
    layout, worker = Layout(fleet.release.root), fleet.worker
    if worker.listen.scheme != "tcp":
        raise RenderError(
            f"worker.listen: {worker.listen}: a deploy brings tcp:// alone, since libfabric's "
            "shim is built where it runs; docs/fabric.md says how"
        )
    for name in ("checkpoint", "receipt", "markov"):
        path: Path | None = getattr(worker, name)
        if path is not None and not path.is_absolute():
            raise RenderError(f"worker.{name}: {path} is not absolute; it is a path on the host")
    for name in ("hash_cache", "record"):
        path = getattr(worker, name)
        if path is not None and not path.is_relative_to(layout.shared):
            raise RenderError(
                f"worker.{name}: {path}: expected a path below {layout.shared}, "
                "the one folder where a deployed worker may write"
            )
    said = worker.model_dump(mode="json", include=set(WorkerSettings.model_fields))
    said["hash_cache"] = said["hash_cache"] or str(layout.shared / "hashes.json")
    said["wait_for_address_s"] = said["wait_for_address_s"] or _WAIT_FOR_ADDRESS_S
    text = yaml.safe_dump({"version": fleet.version, "worker": said}, sort_keys=False)
    return (_HEAD + text).encode()


def worker_unit(fleet: Fleet) -> bytes:
    """The systemd unit."""
    text = files("dsparkctl.rollout").joinpath(f"templates/{UNIT}").read_text()
    worker = fleet.worker
    endpoints = worker.listeners
    ports = sorted({endpoint.port for endpoint in endpoints})
    paths = (worker.checkpoint, worker.receipt, worker.markov)
    in_home = any(str(path).startswith(("/home/", "/root/")) for path in paths if path)
    values = {
        "ROOT": str(fleet.release.root),
        "USER": worker.user,
        "PROTECT_HOME": "read-only" if in_home else "yes",
        "DEVICES": "PrivateDevices=yes\nPrivateUsers=yes"
        if worker.device == "cpu"
        else "DevicePolicy=closed\n"
        + "\n".join(f"DeviceAllow={node} rw" for node in ("char-nvidia*", "char-infiniband*")),
        "INET6": " AF_INET6" if any(":" in endpoint.host for endpoint in endpoints) else "",
        "SOCKETS": "\n".join(f"SocketBindAllow=tcp:{port}" for port in ports),
        "PEERS": _peers(fleet),
    }
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text.encode()


def _peers(fleet: Fleet) -> str:
    """Who may exchange packets with the worker: this host, and the far ends of its links.

    A listener on any other address has peers that nobody named here: then everybody may.
    """
    links = {link.peer: link.bind for link in fleet.links}
    hosts = {endpoint.host for endpoint in fleet.worker.listeners}
    if all(host in links or _is_loopback(host) for host in hosts):
        return " ".join(["localhost", *sorted({*links, *links.values()})])
    return "any"


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
