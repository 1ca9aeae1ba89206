"""Deploys carried out on this machine as a host (`machine`): real files, links and locks, a real
worker with scripted drafts behind the gate (issue 5, part 2). What only booted hosts can show is
shown in tests/hosts."""

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dsparkctl.config.fleet import Fleet
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.exits import Exit
from dsparkctl.rollout import history
from dsparkctl.rollout.deploy import Deploy
from dsparkctl.rollout.execute import Outcome
from dsparkctl.rollout.facts import WorkerFacts
from dsparkctl.rollout.host import HostError
from dsparkctl.rollout.layout import Layout
from dsparkctl.rollout.lock import LockLost, held
from dsparkctl.rollout.plan import Plan, Tell
from dsparkctl.rollout.recipe import NoPlan, Recipe
from dsparkctl.rollout.release import Release
from dsparkctl.rollout.render import worker_config, worker_unit
from dsparkctl.rollout.wheelhouse import read_wheelhouse
from tests.unit.rollout.fleets import (
    fake_python,
    fleet,
    free_port,
    needs_root,
    write_checkpoint,
    write_wheels,
)
from tests.unit.rollout.machine import LocalHost

pytestmark = needs_root

WRONG_RECEIPT = b'{"files": [{"path": "config.json", "sha256": "%s"}], "extracted_files": []}' % (
    b"0" * 64
)


class PowerCut(BaseException):
    """Raised in the middle of a deploy: nothing gets a chance to tidy up."""


class CutHost(LocalHost):
    """Loses power before its nth verb, or before the first that has `cut_at` in it."""

    left = -1
    cut_at = ""

    def about_to(self, verb: str) -> None:
        super().about_to(verb)
        self.left -= 1
        if self.left == 0 or (self.cut_at and self.cut_at in verb):
            self.cut_at = ""
            raise PowerCut


class Site:
    """A host, a fleet, a wheelhouse."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.receipt = write_checkpoint(folder)
        self.fleet = fleet(folder, fake_python(folder / "python3"))
        self.host = CutHost(folder / "host")
        self.said: list[str] = []
        self.now = datetime(2026, 12, 1, tzinfo=UTC)
        self.wheels()

    @property
    def layout(self) -> Layout:
        return Layout(self.fleet.release.root)

    @property
    def work(self) -> Deploy:
        return Deploy(self.fleet, self.host, Tell(self.said.append))

    def wheels(self, text: str = "") -> None:
        write_wheels(self.folder / "wheels", text)

    def facts(self) -> WorkerFacts:
        return self.work.facts()

    def plan(self) -> Plan:
        """As `deploy x86host` makes it, a second later each time."""
        facts, made = self.facts(), read_wheelhouse(self.folder / "wheels")
        config, unit = worker_config(self.fleet), worker_unit(self.fleet)
        self.now += timedelta(seconds=1)
        release = Release(made, config, unit, facts.python_tag)
        return Recipe(self.fleet).deploy(facts, release, self.now, "deploy x86host")

    def run(self, plan: Plan) -> Outcome:
        with self.work.locked(plan.command) as lease:
            return self.work.run(plan, lease)

    def deploy(self) -> Outcome:
        return self.run(self.plan())

    def rollback(self, to: str | None = None) -> Outcome:
        return self.run(Recipe(self.fleet).rollback(self.facts(), to, "rollback"))

    def link(self, name: str) -> str | None:
        path = Path(self.host.local(f"/opt/dspark/{name}"))
        return path.readlink().name if path.is_symlink() else None

    def history(self) -> list[str]:
        entries = history.read(self.host, self.layout, 1000)
        return [f"{one['step']} {one['result']}" for one in entries]

    def change(self, **worker: object) -> None:
        changed = self.fleet.worker.model_copy(update=worker)
        self.fleet = Fleet.model_construct(**{**dict(self.fleet), "worker": changed})

    def break_next(self, **worker: object) -> None:
        """The next release names a receipt that its checkpoint does not have."""
        wrong = self.folder / "WRONG"
        wrong.write_bytes(WRONG_RECEIPT)
        self.change(receipt=wrong, **worker)

    def free_lock(self) -> None:
        """Its holder lost power long ago."""
        lock = Path(self.host.local("/opt/dspark/lock"))
        if lock.exists():
            os.utime(lock, (1, 1))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.host.power_off()


def test_a_first_deploy_serves_as_foreseen_and_a_second_changes_nothing(site: Site) -> None:
    plan = site.plan()
    outcome = site.run(plan)
    assert (outcome.error, outcome.exit) == (None, Exit.OK)
    facts = site.facts()
    assert (facts.current, facts.unit.active) == (plan.release, "active")
    assert site.plan().is_empty
    assert site.history() == [f"{step.key} ok" for step in plan.steps]
    foreseen = plan.steps[-1].after
    assert isinstance(foreseen, WorkerFacts)
    ended = replace(facts.unit, result="")
    assert foreseen.but(free_bytes=0) == facts.but(free_bytes=0, unit=ended)


def test_what_root_installs_can_be_read_by_the_worker_under_any_umask(site: Site) -> None:
    old = os.umask(0o077)
    try:
        assert site.deploy().error is None
    finally:
        os.umask(old)
    release = Path(site.host.local("/opt/dspark/releases")) / str(site.link("current"))
    for path in (release / "venv", release / "venv/bin/python", *release.glob("wheels/*")):
        assert path.stat().st_mode & 0o004, path


def test_a_new_version_can_be_rolled_back_and_forth(site: Site) -> None:
    site.deploy()
    first = site.link("current")
    site.change(max_slots=2)
    assert [step.key for step in site.plan().steps] == ["build", "activate"], "wheels are there"
    assert site.deploy().exit == Exit.OK
    second = site.link("current")
    assert (site.link("previous"), first == second) == (first, False)
    assert site.rollback().exit == Exit.OK
    assert (site.link("current"), site.link("previous")) == (first, second)
    assert site.rollback().exit == Exit.OK
    assert site.link("current") == second


def test_a_worker_that_does_not_start_is_taken_back_and_the_old_one_proved(site: Site) -> None:
    site.deploy()
    first = site.link("current")
    site.break_next()
    outcome = site.deploy()
    assert outcome.exit == Exit.ROLLED_BACK
    assert (site.link("current"), site.link("previous")) == (first, None)
    assert any("journal" in line for line in site.said)
    assert site.facts().unit.active == "active"
    assert site.history()[-2:] == ["activate failed", "activate undone"]
    with pytest.raises(NoPlan, match="no previous release that was healthy"):
        site.rollback()


def test_the_old_release_is_judged_by_its_own_address_and_receipt(site: Site) -> None:
    site.deploy()
    first = site.link("current")
    site.break_next(admin=(Endpoint("tcp", "127.0.0.1", free_port()),))
    outcome = site.deploy()
    assert (outcome.exit, site.link("current")) == (Exit.ROLLED_BACK, first), outcome


def test_a_release_that_was_switched_to_before_a_power_cut_is_left_for_the_one_before_it(
    site: Site,
) -> None:
    site.deploy()
    first = site.link("current")
    site.break_next()
    site.host.cut_at = "systemctl start"
    with pytest.raises(PowerCut):
        site.deploy()
    assert (site.link("current") == first, site.link("previous")) == (False, first)
    site.free_lock()
    outcome = site.deploy()
    assert (outcome.exit, site.link("current")) == (Exit.ROLLED_BACK, first), outcome
    assert site.link("previous") is None, "nobody is his own predecessor"
    assert site.facts().unit.active == "active"


def test_a_first_deploy_that_fails_leaves_no_worker_running(site: Site) -> None:
    site.receipt.write_bytes(WRONG_RECEIPT)
    outcome = site.deploy()
    assert (outcome.exit, outcome.undo_error) == (Exit.ROLLED_BACK, None)
    facts = site.facts()
    assert (facts.current, facts.unit.active, facts.unit.enabled) == (None, "inactive", "disabled")


def test_a_first_deploy_whose_unit_cannot_be_written_is_taken_back_too(site: Site) -> None:
    def refuse(verb: str) -> None:
        if verb.startswith("write /etc/systemd/system/"):
            raise HostError("x86host: no space left on device")

    site.host.about_to = refuse  # type: ignore[method-assign]
    outcome = site.deploy()
    assert (outcome.exit, outcome.undo_error) == (Exit.ROLLED_BACK, None)
    assert site.facts().unit.text is None


def test_what_cannot_be_taken_back_is_exit_9(site: Site) -> None:
    site.deploy()
    site.change(max_slots=2)

    def refuse(verb: str) -> None:
        if verb.startswith("systemctl start"):
            raise HostError("x86host: no")

    site.host.about_to = refuse  # type: ignore[method-assign]
    assert site.deploy().exit == Exit.ROLLBACK_FAILED


def test_halves_of_any_contents_and_their_uploads_are_swept(site: Site) -> None:
    for text in ("", "other"):
        site.wheels(text)
        site.host.cut_at = "-m venv"
        with pytest.raises(PowerCut):
            site.deploy()
        site.free_lock()
    site.wheels("third")
    assert site.deploy().exit == Exit.OK
    facts = site.facts()
    assert [one.id for one in facts.releases] == [facts.current]
    assert facts.incoming == ()


def test_wheels_that_arrived_are_not_sent_again_after_a_cut_in_the_build(site: Site) -> None:
    site.host.cut_at = "/.complete"
    with pytest.raises(PowerCut):
        site.deploy()
    site.free_lock()
    assert [step.key for step in site.plan().steps] == ["sweep", "build", "activate"]


def test_a_rollback_that_is_cut_behind_the_switch_is_not_called_done(site: Site) -> None:
    site.deploy()
    first = site.link("current")
    site.change(max_slots=2)
    site.deploy()
    site.host.cut_at = "systemctl start"
    with pytest.raises(PowerCut):
        site.rollback()
    site.free_lock()
    assert site.link("current") == first
    assert site.facts().unit.active == "inactive", "never the old process under the new name"
    assert site.rollback(first).exit == Exit.OK
    assert site.facts().unit.active == "active"


def test_a_release_that_was_altered_is_no_place_to_go_back_to(site: Site) -> None:
    site.deploy()
    first = str(site.link("current"))
    site.change(max_slots=2)
    site.deploy()
    config = Path(site.host.local(f"/opt/dspark/releases/{first}/dspark.yaml"))
    config.write_text(config.read_text() + "# edited\n")
    with pytest.raises(NoPlan, match=r"was altered since it was installed: dspark.yaml"):
        site.rollback(first)
    with pytest.raises(NoPlan, match="no previous release that was healthy"):
        site.rollback()


def test_a_power_cut_at_any_point_heals_on_a_rerun(site: Site) -> None:
    (site.folder / "probe").mkdir()
    probe = Site(site.folder / "probe")
    probe.deploy()
    n_verbs = len(probe.host.verbs)
    probe.host.power_off()
    chosen = random.Random(5).sample(range(4, n_verbs), 6)
    for turn, at in enumerate(sorted(chosen)):
        site.wheels(str(turn))
        site.host.left = at
        with pytest.raises(PowerCut):
            site.deploy()
        site.host.left = -1
        site.free_lock()
        if turn % 3 == 2:
            site.host.power_off()
        outcome = site.deploy()
        assert (outcome.error, outcome.exit) == (None, Exit.OK), (at, outcome)
        facts = site.facts()
        assert site.plan().is_empty, at
        assert facts.previous != facts.current, at
        assert all(one.is_complete for one in facts.releases), at
        assert facts.incoming == (), at


def test_two_who_find_the_same_expired_lock_do_not_both_get_it(site: Site) -> None:
    path = Path(site.host.local("/opt/dspark/lock"))
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    os.utime(path, (1, 1))
    got, ready, stack = list[bool](), threading.Barrier(8), ExitStack()

    def take() -> None:
        ready.wait(10)
        mine = held(site.host, site.layout, command="t", lease_s=60, wait_s=0, say=site.said.append)
        try:
            stack.enter_context(mine)
        except HostError:
            got.append(False)
        else:
            got.append(True)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with stack:
        assert got.count(True) == 1


def test_a_lease_that_was_lost_stops_the_deploy_before_its_next_step(site: Site) -> None:
    lock = Path(site.host.local("/opt/dspark/lock"))
    with held(
        site.host, site.layout, command="t", lease_s=0.4, wait_s=0, say=site.said.append
    ) as lease:
        lease.check()
        lock.write_text('{"token": "other", "owner": "eve@laptop: deploy"}')
        lease._thread.join(20)  # it ends when it finds out
        with pytest.raises(LockLost, match=r"not ours any more: eve@laptop: deploy has it"):
            lease.check()
        n = len(site.host.verbs)
        with pytest.raises(LockLost):
            site.work.run(site.plan(), lease)
        assert not any(verb.startswith(("write", "put")) for verb in site.host.verbs[n:])
    assert lock.exists(), "somebody else's lock is not ours to free"


def test_a_lease_that_nobody_could_touch_has_run_out(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held(
        site.host, site.layout, command="t", lease_s=0.4, wait_s=0, say=site.said.append
    ) as lease:

        def cut(verb: str) -> None:
            raise HostError("x86host: link is down")

        monkeypatch.setattr(site.host, "about_to", cut)
        time.sleep(0.6)
        with pytest.raises(LockLost, match=r"could not be touched for 0\.4 s and has run out"):
            lease.check()
    assert "its lock could not be freed (x86host: link is down)" in site.said[-1]


def test_undeploy_leaves_releases_and_history_and_a_purge_the_history_alone(site: Site) -> None:
    site.deploy()
    recipe = Recipe(site.fleet)
    assert site.run(recipe.undeploy(site.facts(), "undeploy", purge=False)).error is None
    assert (site.facts().unit.text, site.link("current")) == (None, None)
    assert site.run(recipe.undeploy(site.facts(), "undeploy", purge=True)).error is None
    left = {path.name for path in Path(site.host.local("/opt/dspark")).iterdir()}
    assert left == {"history.jsonl"}
    assert (site.folder / "checkpoint").is_dir()
