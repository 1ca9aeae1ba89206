"""`dsparkctl fabric`: what `o1tcp://` and `o1rdma://` need on this machine (§5).

Shows what libfabric offers and builds the shim; refuses to know what travels.
"""

import resource
from pathlib import Path
from typing import Annotated, Any

import typer

from dsparkctl.cli import render
from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.cli.group import new_app
from dsparkctl.net.fabric.build import BuildError
from dsparkctl.net.fabric.build import build as build_shim
from dsparkctl.net.fabric.library import DEVICES, PROVIDERS, Missing, interfaces, load

app = new_app("The second carrier: libfabric on this machine.")

Json = Annotated[bool, typer.Option("--json", help="One JSON object on one line.")]


@app.command()
def build() -> None:
    """Compile the shim over libfabric where this dsparkctl is installed (cc, libfabric-dev)."""
    try:
        made = build_shim()
        version = load().lib.dsf_version()
    except (BuildError, Missing) as error:
        raise Stop(Exit.PREFLIGHT, str(error)) from None
    render.data(f"built {made}, libfabric {version >> 16}.{version & 0xFFFF}")


@app.command()
def info(as_json: Json = False) -> None:
    """Print libfabric's interfaces for each scheme, RDMA devices and their GIDs, and memlock.

    Exit code 3 when o1tcp cannot be used here.
    """
    found = facts()
    if as_json:
        render.json_line(found)
    else:
        for line in lines(found):
            render.data(line)
    if not found["o1tcp"]:
        raise typer.Exit(Exit.PREFLIGHT)


def facts() -> dict[str, Any]:
    """What there is: `libfabric` is its version or what is missing."""
    found: dict[str, Any] = {scheme: [] for scheme in PROVIDERS}
    try:
        version = load().lib.dsf_version()
        found["libfabric"] = f"{version >> 16}.{version & 0xFFFF}"
        for scheme, provider in PROVIDERS.items():
            found[scheme] = [one._asdict() for one in interfaces(provider)]
    except Missing as error:
        found["libfabric"] = f"not usable: {error}"
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    found["memlock_bytes"] = None if soft == resource.RLIM_INFINITY else soft
    found["rdma_devices"] = {device.name: gids(device) for device in sorted(DEVICES.glob("*"))}
    return found


def gids(device: Path) -> list[str]:
    """Every GID of a device's ports that is set: port, index, GID, and its type (RoCE v2, ...)."""
    found = []
    for path in sorted(device.glob("ports/*/gids/*"), key=lambda at: (at.parts[-3], int(at.name))):
        text = _read(path)
        if text.strip("0:"):
            kind = _read(path.parent.parent / "gid_attrs" / "types" / path.name) or "unknown type"
            found.append(f"port {path.parts[-3]} index {path.name}: {text}, {kind}")
    return found


def lines(found: dict[str, Any]) -> list[str]:
    """The facts for people."""
    memlock = found["memlock_bytes"]
    text = [f"libfabric  {found['libfabric']}"]
    for scheme, provider in PROVIDERS.items():
        offers = [f"{one['domain']} {one['address']}" for one in found[scheme]]
        text.append(f"{scheme:<9}  {provider}: {', '.join(offers) or 'no interface'}")
    text.append(f"memlock    {'unlimited' if memlock is None else f'{memlock >> 10} KiB'}")
    text += [
        f"device     {name}: {gid}" for name, of in found["rdma_devices"].items() for gid in of
    ]
    if not found["rdma_devices"]:
        text.append(f"device     none in {DEVICES}")
    return text


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # an index without a GID cannot be read
        return ""
