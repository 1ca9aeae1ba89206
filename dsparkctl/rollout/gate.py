"""Whether a worker is the one that was wanted, and drafts: asked of the worker itself (R37).

Decides what healthy means: it answers PING, its STATS name the identity of the receipt, its
self-test came out right, it is the unit's own process and the release's version, and after a while
it still says so. Goes through the host's admin listener, never near the engine's connection, and
never sends HELLO.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dsparkctl.contract.codes import MAGIC, VERSION, Op
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.layout import pack
from dsparkctl.contract.records import AppHeader
from dsparkctl.net.ask import ask
from dsparkctl.net.tcp import TcpLink
from dsparkctl.net.transport import Deadline, TransportError
from dsparkctl.rollout.host import Host, HostError
from dsparkctl.rollout.layout import UNIT
from dsparkctl.rollout.plan import Tell

_ANSWER_TIMEOUT_S: Final = 10.0
_LOOK_EVERY_S: Final = 0.5
_MAX_SELF_TEST_AGE_S: Final = 600.0
_JOURNAL_LINES: Final = 15


class GateError(HostError):
    """The worker is not what was wanted, or not in time; says what was seen last."""


class NotAnswering(GateError):  # noqa: N818 -- what is seen
    """Nobody answers on the admin listener, or not with what was asked."""


def stats_of(host: Host, admin: Endpoint) -> dict[str, Any]:
    """PING, then STATS, through the host; NotAnswering when either fails."""
    try:
        sock = host.connect(admin.host, admin.port, timeout_s=_ANSWER_TIMEOUT_S)
    except HostError as error:
        raise NotAnswering(str(error)) from None
    link = TcpLink(sock, admin)
    try:
        for op in (Op.PING, Op.STATS):
            head = pack(AppHeader(MAGIC, VERSION, op, 1, 0, 0, 0, 0))
            reply = ask(link, [head], Deadline(_ANSWER_TIMEOUT_S))
            if reply.header.status:
                raise NotAnswering(
                    f"{host.name}: {admin} refuses {op.name} ({reply.header.status})"
                )
        found = json.loads(bytes(reply.body))
    except (TransportError, ValueError) as error:
        raise NotAnswering(f"{host.name}: {error}") from None
    finally:
        link.close()
    if not isinstance(found, dict):
        raise NotAnswering(f"{host.name}: {admin}: STATS is no object")
    return found


def fault_of(stats: Mapping[str, Any], identity: str | None) -> str:
    """What is wrong with a worker that says this, or an empty string."""
    drafter, age_s = stats.get("drafter_identity"), stats.get("self_test_age_s")
    if identity is not None and drafter != identity:
        return f"its drafter_identity is {drafter}, the receipt's is {identity}"
    if stats.get("self_test_ok") is not True:
        return "its self-test draft did not come out right"
    if not isinstance(age_s, (int, float)) or not 0 <= age_s <= _MAX_SELF_TEST_AGE_S:
        return f"its last self-test is {age_s} s ago"
    return ""


@dataclass(frozen=True, slots=True)
class Gate:
    """An act: wait for a healthy worker, then look once more."""

    admin: Endpoint
    identity: str | None
    """Hex; None where no receipt tells it."""
    version: str
    """Of our distribution, as `build_version` says it."""
    timeout_s: float
    settle_s: float

    def apply(self, host: Host, tell: Tell) -> None:
        tell.say(f"{host.name}: waiting up to {self.timeout_s:g} s for the worker to draft")
        first = self._wait(host)
        if self.settle_s:
            tell.say(f"{host.name}: it drafts; looking again in {self.settle_s:g} s")
            time.sleep(self.settle_s)
        second = self._look(host)
        if second.get("pid") != first.get("pid"):
            raise GateError(
                f"{host.name}: the worker did not last: process {first.get('pid')} drafted, "
                f"{self.settle_s:g} s later it was {second.get('pid')}"
            )

    def _wait(self, host: Host) -> dict[str, Any]:
        end_s = time.monotonic() + self.timeout_s
        while True:
            try:
                return self._look(host)
            except NotAnswering as error:
                state = host.run(("systemctl", "is-active", UNIT)).text
                if state not in ("active", "activating", "reloading", "deactivating"):
                    raise GateError(f"{host.name}: the worker's unit is {state}") from None
                if time.monotonic() > end_s:
                    raise GateError(
                        f"{host.name}: no healthy worker within {self.timeout_s:g} s: {error}"
                    ) from None
            time.sleep(_LOOK_EVERY_S)

    def _look(self, host: Host) -> dict[str, Any]:
        stats = stats_of(host, self.admin)
        pid = host.run(("systemctl", "show", UNIT, "--property=MainPID", "--value")).text.strip()
        if str(stats.get("pid")) != pid:
            raise NotAnswering(
                f"{host.name}: process {stats.get('pid')} answers on {self.admin}, the unit's is "
                f"{pid or 'unknown'}: another worker holds the address"
            )
        fault = fault_of(stats, self.identity)
        if not fault and stats.get("build_version") != self.version:
            fault = f"its version is {stats.get('build_version')}, the release's is {self.version}"
        if fault:
            raise GateError(f"{host.name}: the worker answers, but {fault}")
        return stats

    def __str__(self) -> str:
        return (
            f"gate: {self.admin}, identity {self.identity}, version {self.version}, settling "
            f"{self.settle_s:g} s"
        )


@dataclass(frozen=True, slots=True)
class ShowJournal:
    """An act: the last lines of the worker's journal, for whoever has to know why."""

    remark: str = ""

    def apply(self, host: Host, tell: Tell) -> None:
        argv = ("journalctl", "-u", UNIT, "-n", str(_JOURNAL_LINES), "--no-pager", "-o", "cat")
        for line in host.run(argv, as_root=True).text.splitlines():
            tell.say(f"{host.name}: journal: {line}")
        if self.remark:
            tell.say(f"{host.name}: {self.remark}")

    def __str__(self) -> str:
        return f"show the journal of {UNIT}"
