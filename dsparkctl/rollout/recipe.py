"""From facts to a plan for the worker's host: pure.

Decides which steps are needed, and what each finds when the ones before it are done. Their order:
account, folders, upload, build, activate, prune. Only `activate` touches what serves, and only it
has something to take back.
"""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from dsparkctl.config.fleet import Fleet
from dsparkctl.rollout.acts import Folder, PutFile, PutTree, Remove, Run, Switch, Write
from dsparkctl.rollout.facts import ReleaseFacts, UnitFacts, WorkerFacts
from dsparkctl.rollout.gate import Gate, ShowJournal
from dsparkctl.rollout.layout import COMPLETE, CONFIG, MANIFEST, UNIT, Layout
from dsparkctl.rollout.plan import Act, Plan, Step
from dsparkctl.rollout.release import Release, is_id, is_of

BUILD_TIMEOUT_S: Final = 1800.0
_LARGE_BYTES: Final = 8 << 20
"""Worth resuming in the middle."""


class NoPlan(Exception):  # noqa: N818 -- what there is
    """What was asked cannot be planned from these facts; one line."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The worker's host as one fleet wants it."""

    fleet: Fleet

    @property
    def layout(self) -> Layout:
        return Layout(self.fleet.release.root)

    def deploy(self, facts: WorkerFacts, release: Release, now: datetime, command: str) -> Plan:
        """Steps that make `release` the one that serves; none when it does."""
        found = next((one for one in facts.releases if _is_good(one, release.digest)), None)
        name = found.id if found else release.new_id(now)
        return Plan(command, tuple(self._deploy(facts, release, found, name)), name)

    def rollback(self, facts: WorkerFacts, to: str | None, command: str) -> Plan:
        """Back to `to`, by itself to the release that served before."""
        wanted = to or facts.previous
        if wanted is None:
            raise NoPlan(f"{facts.host}: no previous release to go back to")
        found = facts.release(wanted)
        if found is None or not found.is_complete:
            raise NoPlan(f"{facts.host}: {wanted}: no complete release of that name")
        if wanted == facts.current:
            raise NoPlan(f"{facts.host}: {wanted} serves already")
        return Plan(command, (self._activate(facts, found),), wanted)

    def undeploy(self, facts: WorkerFacts, command: str, *, purge: bool) -> Plan:
        """Stop and remove the worker; with `purge` its releases and cache too."""
        layout, acts = self.layout, list[Act]()
        if facts.unit.text is not None:
            acts += [
                Run(("systemctl", "disable", "--now", UNIT), timeout_s=120.0),
                Run(("rm", "-f", "--", str(layout.unit))),
                Run(("systemctl", "daemon-reload")),
            ]
        if facts.current is not None or facts.previous is not None:
            acts += [Remove(layout.current), Remove(layout.previous)]
        if purge:
            acts += [Remove(layout.incoming), Remove(layout.releases), Remove(layout.shared)]
        if not acts:
            return Plan(command)
        return Plan(command, (Step("undeploy", "remove the worker", facts.host, tuple(acts)),))

    # --- the steps of a deploy, each from the facts that the one before leaves ------------------

    def _deploy(
        self, facts: WorkerFacts, release: Release, found: ReleaseFacts | None, name: str
    ) -> Iterator[Step]:
        served = facts.release(facts.current)
        if served and served.digest == release.digest and self._serves(facts, release, served):
            return
        if not facts.has_user:
            yield (step := self._account(facts))
            facts = _after(step)
        if step_or_none := self._folders(facts):
            yield step_or_none
            facts = _after(step_or_none)
        if found is None:
            if step_or_none := self._upload(facts, release):
                yield step_or_none
                facts = _after(step_or_none)
            yield (step := self._build(facts, release, name))
            facts = _after(step)
            found = facts.releases[-1]
        yield (step := self._activate(facts, found))
        facts = _after(step)
        if step_or_none := self._prune(facts):
            yield step_or_none

    @staticmethod
    def _serves(facts: WorkerFacts, release: Release, served: ReleaseFacts) -> bool:
        return (
            served.is_complete
            and not served.altered
            and served.id in facts.healthy  # after a power cut it may serve and was never judged
            and facts.unit.text == release.unit.decode()
            and (facts.unit.active, facts.unit.enabled) == ("active", "enabled")
        )

    def _account(self, facts: WorkerFacts) -> Step:
        user = self.fleet.worker.user
        made = ("useradd", "--system", "--user-group", "--no-create-home", "--home-dir")
        argv = (*made, str(self.layout.shared), "--shell", "/usr/sbin/nologin", user)
        title = f"make the account {user}"
        return Step("account", title, facts.host, (Run(argv),), after=facts.but(has_user=True))

    def _folders(self, facts: WorkerFacts) -> Step | None:
        layout, user = self.layout, self.fleet.worker.user
        wanted = {
            ".": (layout.root, "root", "0755"),
            "incoming": (layout.incoming, facts.account, "0755"),
            "releases": (layout.releases, "root", "0755"),
            "shared": (layout.shared, user, "0750"),
        }
        there = {name: (owner, mode) for name, owner, mode in facts.folders}
        bad = [
            name for name, (_, owner, mode) in wanted.items() if there.get(name) != (owner, mode)
        ]
        if not bad:
            return None
        acts = tuple(Folder(wanted[n][0], wanted[n][1], int(wanted[n][2], 8)) for n in bad)
        after = tuple((name, owner, mode) for name, (_, owner, mode) in wanted.items())
        title = f"make folders below {layout.root}"
        return Step("folders", title, facts.host, acts, after=facts.but(folders=after))

    def _upload(self, facts: WorkerFacts, release: Release) -> Step | None:
        name = _upload_name(release)
        there = dict(dict(facts.incoming).get(name, ()))
        missing = [wheel for wheel in release.wheels if there.get(wheel.file) != wheel.sha256]
        if not missing:
            return None
        place = self.layout.upload(name)
        held = _held(facts)
        kept = [wheel for wheel in missing if (wheel.file, wheel.sha256) in held]
        missing = [wheel for wheel in missing if wheel not in kept]
        small = [wheel for wheel in missing if wheel.n_bytes < _LARGE_BYTES]
        acts: list[Act] = [Run(("mkdir", "-p", "--", str(place)), as_root=False)]
        if kept:
            paths = [
                str(self.layout.release(held[wheel.file, wheel.sha256]) / "wheels" / wheel.file)
                for wheel in kept
            ]
            copy = ("cp", "--reflink=auto", "-t", str(place), "--", *paths)
            acts.append(Run(copy, timeout_s=300.0))
        if small:
            files, digests = [w.path for w in small], [w.sha256 for w in small]
            acts.append(PutTree(tuple(files), place, tuple(digests)))
        acts += [
            PutFile(w.path, place / w.file, w.sha256) for w in missing if w.n_bytes >= _LARGE_BYTES
        ]
        uploads = dict(facts.incoming) | {name: tuple(release.wheel_hashes.items())}
        after = facts.but(incoming=tuple(uploads.items()))
        n_mb = sum(wheel.n_bytes for wheel in missing) / 1e6
        title = f"upload {len(missing)} wheels ({n_mb:.1f} MB)"
        title += f", {len(kept)} are there" if kept else ""
        return Step("upload", title, facts.host, tuple(acts), after=after)

    def _build(self, facts: WorkerFacts, release: Release, name: str) -> Step:
        here, wheels = self.layout.release(name), self.layout.upload(_upload_name(release))
        python = f"{here}/venv/bin/python"
        halves = [
            one.id
            for one in facts.releases
            if is_of(one.id, release.digest) and (not one.is_complete or one.altered)
        ]
        pip = (python, "-I", "-m", "pip", "install", "--quiet", "--no-index", "--no-cache-dir")
        own = f"dsparkctl[worker]=={release.version}"
        acts: tuple[Act, ...] = (
            *(Remove(self.layout.release(half)) for half in halves),
            Remove(here),
            Folder(here, "root", 0o755),
            Write(here / CONFIG, release.config),
            Write(here / UNIT, release.unit),
            Write(here / MANIFEST, release.manifest()),
            # Built where it stays: a venv does not survive being moved.
            Run((str(self.fleet.release.python), "-m", "venv", f"{here}/venv"), timeout_s=300.0),
            Run((*pip, "--find-links", str(wheels), own), timeout_s=BUILD_TIMEOUT_S),
            Run((python, "-I", "-c", "import dspark_worker.serve, torch"), timeout_s=300.0),
            Run(("mv", "-T", "--", str(wheels), f"{here}/wheels")),
            Run(("chown", "-R", "root:root", "--", f"{here}/wheels")),
            Run(("sync", "-f", str(here)), timeout_s=300.0),
            Write(here / COMPLETE, b""),
        )
        made = ReleaseFacts(
            name,
            is_complete=True,
            digest=release.digest,
            version=release.version,
            wheels=tuple(sorted(release.wheel_hashes.items())),
            unit_text=release.unit.decode(),
            config_text=release.config.decode(),
        )
        kept = tuple(one for one in facts.releases if one.id not in halves)
        uploads = tuple(one for one in facts.incoming if one[0] != _upload_name(release))
        served = facts.release(facts.current)
        diff = _diff(served.config_text if served else "", made.config_text, CONFIG)
        after = facts.but(releases=(*kept, made), incoming=uploads)
        title = f"build release {name}"
        return Step("build", title, facts.host, acts, diff=diff, after=after)

    def _activate(self, facts: WorkerFacts, release: ReleaseFacts) -> Step:
        layout = self.layout
        old = facts.release(facts.current)
        acts: list[Act] = [Write(layout.unit, release.unit_text.encode())]
        if old is not None and old.id != release.id:
            acts.append(Switch(layout.previous, layout.target(old.id)))
        acts += [Switch(layout.current, layout.target(release.id)), *self._start()]
        acts.append(self._gate(facts))
        goes_back = old is not None and old.is_complete and old.id != release.id
        undo: list[Act] = [
            ShowJournal("" if goes_back else "there is no other release to go back to")
        ]
        if old is not None and goes_back:
            undo += [Switch(layout.current, layout.target(old.id))]
            if facts.previous is not None:
                undo.append(Switch(layout.previous, layout.target(facts.previous)))
            undo += [Write(layout.unit, old.unit_text.encode()), *self._start(), self._gate(facts)]
        else:
            undo += [Run(("systemctl", "disable", "--now", UNIT), timeout_s=120.0)]
            if old is None:
                undo.append(Remove(layout.current))
        unit = UnitFacts(release.unit_text, "active", "enabled", "running")
        previous = facts.previous if old is None or old.id == release.id else old.id
        healthy = (*(one for one in facts.healthy if one != release.id), release.id)
        after = facts.but(current=release.id, previous=previous, unit=unit, healthy=healthy)
        return Step(
            "activate",
            f"activate {release.id} and see it draft",
            facts.host,
            tuple(acts),
            tuple(undo),
            diff=_diff(facts.unit.text or "", release.unit_text, str(layout.unit)),
            after=after,
        )

    def _start(self) -> tuple[Act, ...]:
        """What has failed before may start again; a restart returns when the worker is ready."""
        patient_s = self.fleet.release.gate_timeout_s
        return (
            Run(("systemctl", "daemon-reload")),
            Run(("systemctl", "enable", "--quiet", UNIT)),
            Run(("systemctl", "reset-failed", UNIT)),
            Run(("systemctl", "restart", UNIT), timeout_s=patient_s),
        )

    def _gate(self, facts: WorkerFacts) -> Gate:
        release = self.fleet.release
        admin = self.fleet.worker.admin[0]
        return Gate(admin, facts.identity, release.gate_timeout_s, release.settle_s)

    def _prune(self, facts: WorkerFacts) -> Step | None:
        """Complete, healthy, unused ones beyond the newest; failed ones stay to be looked at."""
        used = {facts.current, facts.previous}
        good = [
            one.id
            for one in facts.releases
            if one.is_complete and one.id in facts.healthy and is_id(one.id)
        ]
        kept = set(sorted(good)[-self.fleet.release.keep :]) | used
        old = [name for name in good if name not in kept]
        if not old:
            return None
        acts = tuple(Remove(self.layout.release(name)) for name in old)
        after = facts.but(releases=tuple(one for one in facts.releases if one.id not in old))
        title = f"remove {len(old)} old releases"
        return Step("prune", title, facts.host, acts, is_optional=True, after=after)


def _after(step: Step) -> WorkerFacts:
    assert isinstance(step.after, WorkerFacts)
    return step.after


def _is_good(one: ReleaseFacts, digest: str) -> bool:
    return one.digest == digest and one.is_complete and not one.altered and is_id(one.id)


def _held(facts: WorkerFacts) -> dict[tuple[str, str], str]:
    """Wheels that a whole release holds, by name and sha256, to the release's id."""
    return {pair: one.id for one in facts.releases if one.is_complete for pair in one.wheels}


def _upload_name(release: Release) -> str:
    """The same at every attempt, so that one that broke off is gone on with."""
    return release.digest[:16]


def _diff(old: str, new: str, name: str) -> str:
    lines = difflib.unified_diff(
        old.splitlines(), new.splitlines(), f"{name} (now)", f"{name} (then)", lineterm=""
    )
    return "\n".join(lines)
