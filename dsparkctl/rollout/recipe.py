"""From facts to a plan for the worker's host: pure.

Decides which steps are needed, and what each finds when the ones before it are done. Their order:
account, folders, sweep, upload, build, activate, prune. Only `activate` touches what serves, and
only it has something to take back (`activation`).
"""

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath
from typing import Final

from dsparkctl.config.fleet import Fleet
from dsparkctl.rollout.activation import gate_of, serves, switch, way_back
from dsparkctl.rollout.acts import Folder, PutFile, PutTree, Remove, Run, Write
from dsparkctl.rollout.facts import ReleaseFacts, UnitFacts, WorkerFacts
from dsparkctl.rollout.layout import COMPLETE, CONFIG, MANIFEST, UNIT, Layout
from dsparkctl.rollout.plan import Act, Plan, Step
from dsparkctl.rollout.release import Release, is_id

BUILD_TIMEOUT_S: Final = 1800.0
_LARGE_BYTES: Final = 8 << 20
"""Worth resuming in the middle."""
_UPLOAD_DIGITS: Final = 16
_UPLOAD: Final = re.compile(f"[0-9a-f]{{{_UPLOAD_DIGITS}}}")
_READABLE: Final = ("sh", "-c", 'umask 022 && exec "$@"', "sh")
"""What is installed must be readable for the worker, whatever root's umask."""


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
        """Back to `to`, by itself to the latest release before this one that was healthy."""
        wanted = to or self._last_good(facts)
        if wanted is None:
            raise NoPlan(
                f"{facts.host}: no previous release that was healthy; dsparkctl releases shows "
                "what there is, and one of them can be named"
            )
        found = facts.release(wanted)
        if found is None or not found.is_complete:
            raise NoPlan(f"{facts.host}: {wanted}: no complete release of that name")
        if found.altered:
            changed = ", ".join(found.altered[:3])
            raise NoPlan(f"{facts.host}: {wanted} was altered since it was installed: {changed}")
        if serves(facts, found):
            raise NoPlan(f"{facts.host}: {wanted} serves already")
        return Plan(command, (self._activate(facts, found),), wanted)

    @staticmethod
    def _last_good(facts: WorkerFacts) -> str | None:
        """What the links and the history record, never what merely lies there."""
        whole = {one.id for one in facts.releases if one.is_complete and not one.altered}
        usable = (whole & set(facts.healthy)) - {facts.current}
        return next((one for one in (facts.previous, *facts.healthy[::-1]) if one in usable), None)

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
        if served and served.digest == release.digest and serves(facts, served):
            return
        if not facts.has_user:
            yield (step := self._account(facts))
            facts = _after(step)
        if step_or_none := self._folders(facts):
            yield step_or_none
            facts = _after(step_or_none)
        if step_or_none := self._sweep(facts, release):
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

    def _sweep(self, facts: WorkerFacts, release: Release) -> Step | None:
        """Halves that power cuts and full disks left, and what was spoilt and is built anew."""
        old = [
            one.id
            for one in facts.releases
            if is_id(one.id)
            and one.id not in (facts.current, facts.previous)
            and (not one.is_complete or (one.altered and one.digest == release.digest))
        ]
        if not old:
            return None
        acts = tuple(Remove(self.layout.release(name)) for name in old)
        after = facts.but(releases=tuple(one for one in facts.releases if one.id not in old))
        title = f"remove half releases: {', '.join(old)}"
        return Step("sweep", title, facts.host, acts, after=after)

    def _upload(self, facts: WorkerFacts, release: Release) -> Step | None:
        name, held = _upload_name(release), _held(facts, release)
        there = dict(dict(facts.incoming).get(name, ()))
        missing = [
            wheel
            for wheel in release.wheels
            if wheel.file not in held and there.get(wheel.file) != wheel.sha256
        ]
        if not missing:
            return None
        place = self.layout.upload(name)
        small = [wheel for wheel in missing if wheel.n_bytes < _LARGE_BYTES]
        acts: list[Act] = [Run(("mkdir", "-p", "--", str(place)), as_root=False)]
        if small:
            files, digests = [w.path for w in small], [w.sha256 for w in small]
            acts.append(PutTree(tuple(files), place, tuple(digests)))
        acts += [
            PutFile(w.path, place / w.file, w.sha256) for w in missing if w.n_bytes >= _LARGE_BYTES
        ]
        whole = there | {wheel.file: wheel.sha256 for wheel in missing}
        uploads = dict(facts.incoming) | {name: tuple(sorted(whole.items()))}
        after = facts.but(incoming=tuple(uploads.items()))
        n_mb = sum(wheel.n_bytes for wheel in missing) / 1e6
        title = f"upload {len(missing)} of {len(release.wheels)} wheels ({n_mb:.1f} MB)"
        return Step("upload", title, facts.host, tuple(acts), after=after)

    def _build(self, facts: WorkerFacts, release: Release, name: str) -> Step:
        here, upload = self.layout.release(name), self.layout.upload(_upload_name(release))
        python, wheels = f"{here}/venv/bin/python", here / "wheels"
        pip = (python, "-I", "-m", "pip", "install", "--quiet", "--no-index", "--no-cache-dir")
        own = f"dsparkctl[worker]=={release.version}"
        acts: tuple[Act, ...] = (
            Remove(here),
            Folder(here, "root", 0o755),
            Folder(wheels, "root", 0o755),
            *self._collect(facts, release, wheels),
            Write(here / CONFIG, release.config),
            Write(here / UNIT, release.unit),
            Write(here / MANIFEST, release.manifest()),
            # Built where it stays: a venv does not survive being moved.
            Run((*_READABLE, str(self.fleet.release.python), "-m", "venv", f"{here}/venv"),
                timeout_s=300.0),
            Run((*_READABLE, *pip, "--find-links", str(wheels), own), timeout_s=BUILD_TIMEOUT_S),
            Run((python, "-I", "-c", "import dspark_worker.serve, torch"), timeout_s=300.0),
            Run(("sync", "-f", str(here)), timeout_s=300.0),
            Write(here / COMPLETE, b""),
            Remove(upload),
        )  # fmt: skip
        made = ReleaseFacts(
            name,
            is_complete=True,
            digest=release.digest,
            version=release.version,
            wheels=tuple(sorted(release.wheel_hashes.items())),
            unit_text=release.unit.decode(),
            config_text=release.config.decode(),
        )
        uploads = tuple(one for one in facts.incoming if one[0] != _upload_name(release))
        served = facts.release(facts.current)
        diff = _diff(served.config_text if served else "", made.config_text, CONFIG)
        after = facts.but(releases=(*facts.releases, made), incoming=uploads)
        title = f"build release {name}"
        return Step("build", title, facts.host, acts, diff=diff, after=after)

    def _collect(
        self, facts: WorkerFacts, release: Release, wheels: PurePosixPath
    ) -> Iterator[Act]:
        """Into a folder of root's, and checked there: nobody else can change them any more."""
        held, upload = _held(facts, release), self.layout.upload(_upload_name(release))
        kept = [str(self.layout.release(one) / "wheels" / file) for file, one in held.items()]
        new = [str(upload / wheel.file) for wheel in release.wheels if wheel.file not in held]
        if kept:
            yield Run(("cp", "--link", "-t", str(wheels), "--", *kept))
        if new:
            copy = ("cp", "--reflink=auto", "--no-preserve=all", "-t", str(wheels), "--", *new)
            yield Run((*_READABLE, *copy), timeout_s=300.0)
        lines = "".join(f"{wheel.sha256}  {wheel.file}\n" for wheel in release.wheels)
        check = ("env", "-C", str(wheels), "sha256sum", "--check", "--strict", "--quiet", "-")
        yield Run(check, stdin=lines.encode(), timeout_s=300.0)

    def _activate(self, facts: WorkerFacts, release: ReleaseFacts) -> Step:
        old = facts.release(facts.current)
        leaving = old.id if old is not None and old.id != release.id else None
        unit = UnitFacts(release.unit_text, "active", "enabled", "running")
        healthy = (*(one for one in facts.healthy if one != release.id), release.id)
        after = facts.but(
            current=release.id, previous=leaving or facts.previous, unit=unit, healthy=healthy
        )
        return Step(
            "activate",
            f"activate {release.id} and see it draft",
            facts.host,
            (*switch(self.fleet, release, leaving), gate_of(release, facts, self.fleet)),
            way_back(facts, self.fleet, release.id),
            diff=_diff(facts.unit.text or "", release.unit_text, str(self.layout.unit)),
            after=after,
        )

    def _prune(self, facts: WorkerFacts) -> Step | None:
        """Complete, healthy, unused ones beyond the newest (failed ones stay to be looked at), and
        uploads that came to nothing."""
        used = {facts.current, facts.previous}
        good = [
            one.id
            for one in facts.releases
            if one.is_complete and one.id in facts.healthy and is_id(one.id)
        ]
        kept = set(sorted(good)[-self.fleet.release.keep :]) | used
        old = [name for name in good if name not in kept]
        stale = [name for name, _ in facts.incoming if _UPLOAD.fullmatch(name)]
        if not old and not stale:
            return None
        paths = [*map(self.layout.release, old), *map(self.layout.upload, stale)]
        after = facts.but(
            releases=tuple(one for one in facts.releases if one.id not in old),
            incoming=tuple(one for one in facts.incoming if one[0] not in stale),
        )
        title = f"remove what is not used any more: {', '.join([*old, *stale])}"
        acts = tuple(map(Remove, paths))
        return Step("prune", title, facts.host, acts, is_optional=True, after=after)


def _after(step: Step) -> WorkerFacts:
    assert isinstance(step.after, WorkerFacts)
    return step.after


def _is_good(one: ReleaseFacts, digest: str) -> bool:
    return one.digest == digest and one.is_complete and not one.altered and is_id(one.id)


def _held(facts: WorkerFacts, release: Release) -> dict[str, str]:
    """Wanted wheels that a whole release holds: by file name, that release's id."""
    wanted = release.wheel_hashes
    return {
        file: one.id
        for one in facts.releases
        if one.is_complete and is_id(one.id)
        for file, sha256 in one.wheels
        if wanted.get(file) == sha256
    }


def _upload_name(release: Release) -> str:
    """The same at every attempt, so that one that broke off is gone on with."""
    return release.digest[:_UPLOAD_DIGITS]


def _diff(old: str, new: str, name: str) -> str:
    lines = difflib.unified_diff(
        old.splitlines(), new.splitlines(), f"{name} (now)", f"{name} (then)", lineterm=""
    )
    return "\n".join(lines)
