"""The examination: a session with each host, the collector on each, a transfer over each link.

Decides the order and the bounds, and that one host's trouble hides nothing of another's. Refuses to
judge: `checks` do. Nothing is changed anywhere.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from dsparkctl import CONTRACT_VERSION, __version__
from dsparkctl.config.fleet import Fleet
from dsparkctl.rollout.doctor.checks import between, login
from dsparkctl.rollout.doctor.checks.fabric import fabric
from dsparkctl.rollout.doctor.checks.gpu import gpu
from dsparkctl.rollout.doctor.checks.link import link
from dsparkctl.rollout.doctor.checks.ports import ports
from dsparkctl.rollout.doctor.checks.rdma import rdma
from dsparkctl.rollout.doctor.checks.storage import checkpoint, disk
from dsparkctl.rollout.doctor.checks.system import memlock, memory, python
from dsparkctl.rollout.doctor.collector.run import MARK
from dsparkctl.rollout.doctor.finding import Finding, fail, warn
from dsparkctl.rollout.doctor.observations import Installed, Login, Seen
from dsparkctl.rollout.doctor.part import Part, part_of
from dsparkctl.rollout.doctor.transfer import measure_link
from dsparkctl.rollout.host import Host, HostError
from dsparkctl.rollout.parcel import PYTHON, parcel

Check = Callable[[Part, Seen], Iterator[Finding]]

CHECKS: Final[tuple[Check, ...]] = (
    *(python, gpu, disk, memory, memlock, checkpoint),
    *(ports, link, rdma, fabric),
)
"""Of one host, in the order in which they are told."""

COLLECT_S: Final = 180.0
_ANSWER_S: Final = 30.0
_WORD: Final = b"dsparkctl"


@dataclass(frozen=True, slots=True)
class Examined:
    """One host, as far as it went."""

    part: Part
    host: Host | None = None
    login: Login | None = None
    seen: Seen | None = None
    findings: tuple[Finding, ...] = ()
    """What is told already, since there is nothing to judge later."""


def preflight(fleet: Fleet, hosts: Mapping[str, Host]) -> list[Finding]:
    """The doctor's findings on hosts that a command has opened already."""
    return examine(fleet, list(hosts), hosts.__getitem__)


def examine(fleet: Fleet, names: Sequence[str], open_host: Callable[[str], Host]) -> list[Finding]:
    """Findings host by host, then those that lie between two. Hosts stay open."""
    with ThreadPoolExecutor(max(1, len(names))) as pool:
        examined = list(pool.map(lambda name: _one(part_of(fleet, name), open_host), names))
    findings = [finding for one in examined for finding in _judged(one)]
    by_name = {one.part.host: one for one in examined}
    findings += _links(fleet, by_name)
    logins = {name: one.login for name, one in by_name.items() if one.login is not None}
    findings += between.clocks(logins, fleet.worker.host or "")
    seen = {name: one.seen for name, one in by_name.items() if one.seen is not None}
    findings += between.versions(seen, Installed(version=__version__, contract=CONTRACT_VERSION))
    order = {name: place for place, name in enumerate(names)}
    return sorted(findings, key=lambda finding: order[finding.host])


def _one(part: Part, open_host: Callable[[str], Host]) -> Examined:
    try:
        host = open_host(part.host)
        found = _login(host)
    except HostError as error:
        return Examined(part, findings=(login.unreached(part.host, error),))
    try:
        return Examined(part, host, found, _collect(part, host, found.sudo_error is None))
    except _NotCollected as error:
        return Examined(part, host, found, findings=(error.finding,))
    except HostError as error:
        lost = fail(part.host, "collector", str(error), "run dsparkctl doctor again")
        return Examined(part, host, found, findings=(lost,))


def _judged(one: Examined) -> Iterator[Finding]:
    if one.login is not None:
        yield from login.login(one.part.host, one.login)
    yield from one.findings
    if one.seen is not None:
        for check in CHECKS:
            yield from check(one.part, one.seen)
        for name, reason in one.seen.errors.items():
            todo = "look there by hand; the checks that need it are left out above"
            yield warn(one.part.host, name, f"could not be found out: {reason}", todo)


def _login(host: Host) -> Login:
    """HostError when there is no session."""
    echoed = host.run(("printf", "%s", _WORD.decode()), timeout_s=_ANSWER_S).stdout
    return Login(
        echoed=_noise(echoed),
        sudo_error=_sudo_error(host),
        offset_s=_offset_s(host),
    )


def _noise(echoed: bytes) -> str:
    """What came beside the word."""
    if echoed == _WORD:
        return ""
    return echoed.replace(_WORD, b"").decode("utf-8", "replace")[:100] or "(nothing at all)"


def _sudo_error(host: Host) -> str | None:
    try:
        ran = host.run(("true",), as_root=True, timeout_s=_ANSWER_S)
    except HostError as error:
        return str(error)
    said = ran.stderr.decode("utf-8", "replace").strip().splitlines()
    return None if ran.code == 0 else (said[-1] if said else f"sudo ended with code {ran.code}")


def _offset_s(host: Host) -> tuple[float, float] | None:
    """The host read its clock at some time between our two looks at ours."""
    before_s = time.time()
    ran = host.run(("date", "+%s.%N"), timeout_s=_ANSWER_S)
    after_s = time.time()
    try:
        there_s = float(ran.text.splitlines()[-1])
    except (ValueError, IndexError):
        return None
    return there_s - after_s, there_s - before_s


class _NotCollected(Exception):  # noqa: N818 -- what happened
    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.saw)
        self.finding = finding


def _collect(part: Part, host: Host, as_root: bool) -> Seen:
    room = f"{__package__}.collector"
    program = parcel(f"{room}.run", (room,), oldest=(3, 9))
    argv = (*PYTHON, json.dumps(part.questions()))
    ran = host.run(argv, stdin=program, as_root=as_root, timeout_s=COLLECT_S)
    if ran.code:
        said = ran.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = said[-1][:300] if said else f"python3 ended with code {ran.code}"
        todo = "install Python 3.9 or newer as python3"
        raise _NotCollected(fail(part.host, "python", reason, todo))
    try:
        return Seen.model_validate_json(ran.stdout.rpartition(MARK.encode())[2])
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        said_what = f"python3 answered something else than was asked ({where or 'no object'})"
        todo = "run it by hand: python3 -c 'print(1)'"
        raise _NotCollected(fail(part.host, "collector", said_what, todo)) from None


def _links(fleet: Fleet, examined: Mapping[str, Examined]) -> Iterator[Finding]:
    """From the Spark's end of each link of which both ends are there."""
    for near in examined.values():
        for end in near.part.ends:
            far = examined.get(end.other)
            if near.part.worker is not None or near.seen is None or far is None or not far.seen:
                continue
            yield from between.mtus(near.part, near.seen, end, far.seen)
            port = (far.seen.free_ports or {}).get(end.peer)
            if near.host and far.host and port and near.seen.interface_of(end.own):
                measured = measure_link(near.host, far.host, end, port)
                yield from between.transfer(near.part, end, measured, fleet.policy.timeout_ms)
