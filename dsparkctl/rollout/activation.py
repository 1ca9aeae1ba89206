"""From one release to another: the acts that make it serve, and the way back.

Pure. The unit is down from before `current` moves until the new release starts, so that a worker
that runs always is the one that `current` names, wherever a deploy may be cut.
"""

from pathlib import Path
from typing import Final

from dsparkctl.config.errors import ConfigError
from dsparkctl.config.fleet import Fleet
from dsparkctl.config.source import parse_fleet
from dsparkctl.config.worker import WorkerSection
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.rollout.acts import Remove, Run, Switch, WaitUntil, Write
from dsparkctl.rollout.facts import ReleaseFacts, WorkerFacts
from dsparkctl.rollout.gate import Gate, ShowJournal
from dsparkctl.rollout.host import Ran
from dsparkctl.rollout.layout import CONFIG, UNIT, Layout
from dsparkctl.rollout.plan import Act

STOP_TIMEOUT_S: Final = 60.0
"""Twice the unit's own TimeoutStopSec."""


def serves(facts: WorkerFacts, release: ReleaseFacts) -> bool:
    """Whether this release runs as it was installed, and a gate has found it healthy (after a power
    cut it may run and was never judged)."""
    return (
        facts.current == release.id
        and release.is_complete
        and not release.altered
        and release.id in facts.healthy
        and facts.unit.text == release.unit_text
        and (facts.unit.active, facts.unit.enabled) == ("active", "enabled")
    )


def switch(fleet: Fleet, release: ReleaseFacts, previous: str | None) -> tuple[Act, ...]:
    """Make `release` serve, and `previous` the one to go back to (None: leave that link alone)."""
    layout = Layout(fleet.release.root)
    before = () if previous is None else (Switch(layout.previous, layout.target(previous)),)
    return (
        Write(layout.unit, release.unit_text.encode()),
        *before,
        Run(("systemctl", "daemon-reload")),
        Run(("systemctl", "enable", "--quiet", UNIT)),
        Run(("systemctl", "stop", UNIT), timeout_s=STOP_TIMEOUT_S),
        Switch(layout.current, layout.target(release.id)),
        # What has failed before may start again; systemd refuses where nothing has.
        Run(("systemctl", "reset-failed", UNIT), may_fail=True),
        Run(("systemctl", "start", UNIT), timeout_s=fleet.release.gate_timeout_s),
    )


def way_back(facts: WorkerFacts, fleet: Fleet, leaving: str) -> tuple[Act, ...]:
    """From release `leaving` to the one that the links record, proved like any other; where they
    record none, no worker is left running."""
    layout = Layout(fleet.release.root)
    # After a power cut behind the switch, `current` is `leaving` already.
    recorded = facts.previous if facts.current == leaving else facts.current
    old = facts.release(recorded)
    if old is None or old.id == leaving or not old.is_complete or not old.unit_text:
        said = "there is no other release to go back to; the worker is stopped and disabled"
        return (ShowJournal(said), *_retired(layout))
    before = facts.previous if facts.previous not in (old.id, leaving) else None
    link = Remove(layout.previous) if before is None else None
    return (
        ShowJournal(),
        *switch(fleet, old, before),
        *((link,) if link else ()),
        gate_of(old, facts, fleet),
    )


def gate_of(release: ReleaseFacts, facts: WorkerFacts, fleet: Fleet) -> Gate:
    """What proves a release, by its own configuration: it may listen elsewhere than `dspark.yaml`
    says now, and have another receipt (which its worker holds against the files as it starts)."""
    worker = fleet.worker
    own = _worker_of(release.config_text) or worker
    return Gate(
        _reachable((own.admin or worker.admin)[0]),
        facts.identity if own.receipt == worker.receipt else None,
        release.version,
        fleet.release.gate_timeout_s,
        fleet.release.settle_s,
    )


def _retired(layout: Layout) -> tuple[Act, ...]:
    """No worker at all, neither now nor after a restart of the host."""
    show = ("systemctl", "show", UNIT, "--property=ActiveState", "--value")
    return (
        # systemd refuses where the unit was never written; what is seen then decides.
        Run(("systemctl", "disable", "--now", UNIT), timeout_s=STOP_TIMEOUT_S, may_fail=True),
        WaitUntil(f"{UNIT} to be down", show, _is_down, STOP_TIMEOUT_S),
        Remove(layout.current),
    )


def _is_down(ran: Ran) -> bool:
    return ran.text.strip() in ("inactive", "failed")


def _reachable(endpoint: Endpoint) -> Endpoint:
    """A worker that listens everywhere listens on loopback."""
    return Endpoint("tcp", "127.0.0.1", endpoint.port) if endpoint.is_wildcard else endpoint


def _worker_of(config_text: str) -> WorkerSection | None:
    try:
        return parse_fleet(config_text.encode(), Path(CONFIG)).worker
    except ConfigError:
        return None
