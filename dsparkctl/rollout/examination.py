"""A doctor's visit: asks every host, measures every link, and hands all of it to `doctor`.

Decides the order, and that a host which cannot be reached is a finding as well. Never moves more
than some 35 MB over a link.
"""

import json
import random
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from dsparkctl import __version__
from dsparkctl.config.fleet import Fleet
from dsparkctl.config.hosts import LinkSettings
from dsparkctl.rollout.doctor import (
    STEP_BYTES,
    Finding,
    Verdict,
    host_findings,
    links_of,
    skew_findings,
    transfer_finding,
)
from dsparkctl.rollout.host import Host, HostError, Hosts, SshError
from dsparkctl.rollout.layout import MANIFEST, Layout
from dsparkctl.rollout.programs import ask
from dsparkctl.rollout.spark_facts import look

_SIZES: Final = [[0, 200], *([n, times] for n, times in zip(STEP_BYTES, (20, 10, 6), strict=True))]
_PORTS: Final = (40_000, 49_000)
_TRANSFER_TIMEOUT_S: Final = 45.0


def examine(fleet: Fleet, hosts: Hosts, names: Sequence[str]) -> Iterator[Finding]:
    """Every finding, host by host as it is found, then link by link."""
    reached: list[str] = []
    for name in names:
        try:
            seen = observe(fleet, hosts[name])
        except HostError as error:
            check = "ssh" if isinstance(error, SshError) else "root"
            yield Finding(name, check, Verdict.FAIL, str(error).removeprefix(f"{name}: "))
            continue
        reached.append(name)
        yield from host_findings(fleet, name, seen)
    for link in fleet.links:
        if link.host in reached and fleet.worker.host in reached:
            yield _measured(hosts[link.host], hosts[fleet.worker.host], link)
    yield from skew_findings(dict(_versions(fleet, hosts, reached)), __version__)


def _versions(fleet: Fleet, hosts: Hosts, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What is installed of us, by host."""
    for name in names:
        if name == fleet.worker.host:
            manifest = str(Layout(fleet.release.root).current / MANIFEST)
            ran = hosts[name].run(("cat", "--", manifest), as_root=True)
            if ran.code == 0:
                yield name, str(json.loads(ran.stdout)["version"])
        elif fleet.engine is not None and name in fleet.engine.ranks:
            facts = look(hosts[name], fleet.engine)
            if facts.package_version:
                yield name, facts.package_version


def observe(fleet: Fleet, host: Host) -> dict[str, Any]:
    """What one host says of itself."""
    echo = host.run(("echo", "dspark")).stdout.decode("utf-8", "replace")
    worker = fleet.worker
    is_worker = host.name == worker.host
    paths = (fleet.release.root, worker.checkpoint, worker.receipt)
    folders = [str(path) for path in paths if path is not None] if is_worker else []
    ports = sorted({one.port for one in (worker.listen, *worker.admin)}) if is_worker else []
    links = [
        link.model_dump(include={"bind", "peer", "mtu"}) for link in links_of(fleet, host.name)
    ]
    asked = {"links": links, "folders": folders, "ports": ports, "sys": "/sys"}
    sent_s = time.time()
    seen = ask(host, "doctor_facts", asked, as_root=True, timeout_s=60.0)
    middle_s = (sent_s + time.time()) / 2
    account = host.run(("id", "-un")).text
    way = "being root" if account == "root" else f"sudo of {account}"
    return {**seen, "echo": echo, "root": way, "clock_off_s": float(seen["time_s"]) - middle_s}


def _measured(spark: Host, worker: Host, link: LinkSettings) -> Finding:
    """A transfer of STEP sizes from the Spark to the worker's host."""
    port = random.randint(*_PORTS)
    common = {"address": link.peer, "port": port, "bind": link.bind, "sizes": _SIZES}
    failures: list[str] = []

    def answer() -> None:
        try:
            ask(worker, "link_end", common | {"role": "answer"}, timeout_s=_TRANSFER_TIMEOUT_S)
        except HostError as error:
            failures.append(str(error))

    answering = threading.Thread(target=answer, daemon=True)
    answering.start()
    try:
        found = ask(spark, "link_end", common | {"role": "ask"}, timeout_s=_TRANSFER_TIMEOUT_S)
    except HostError as error:
        answering.join(_TRANSFER_TIMEOUT_S)
        name = f"link {link.bind} - {link.peer}"
        said = f"no transfer: {failures[0] if failures else error}"
        return Finding(spark.name, name, Verdict.FAIL, said[:300])
    answering.join(_TRANSFER_TIMEOUT_S)
    return transfer_finding(spark.name, link, found["median_us"])
