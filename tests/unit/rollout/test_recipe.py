"""Plans for the worker's host (issue 5, part 2): idempotent, healing, sparing what is good."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsparkctl.config.fleet import Fleet
from dsparkctl.rollout.acts import PutFile, PutTree, Remove, Run, Switch
from dsparkctl.rollout.facts import ReleaseFacts, UnitFacts, WorkerFacts
from dsparkctl.rollout.gate import Gate
from dsparkctl.rollout.plan import Plan, Step
from dsparkctl.rollout.recipe import NoPlan, Recipe
from dsparkctl.rollout.release import Release
from dsparkctl.rollout.wheelhouse import Wheel

NOW = datetime(2026, 12, 1, 10, 15, tzinfo=UTC)

FLEET = Fleet.model_validate(
    {
        "version": 1,
        "hosts": {"x86host": {}},
        "worker": {"host": "x86host", "checkpoint": "/c", "receipt": "/c/R"},
        "release": {"keep": 2},
    },
    context={"folder": Path("/")},
)
RECIPE = Recipe(FLEET)


def release(mark: str = "a") -> Release:
    wheels = (
        Wheel(Path("/w/dsparkctl-0.1.0-py3-none-any.whl"), mark * 64, 1000),
        Wheel(Path("/w/torch-2.13.0-cp311-cp311-linux_x86_64.whl"), "e" * 64, 190 << 20),
    )
    return Release(wheels, f"config {mark}\n".encode(), f"unit {mark}\n".encode(), "cp311")


ID = f"20261201T101500-{release().digest[:8]}"
EMPTY = WorkerFacts("x86host", free_bytes=10**12, account="ops", identity="ab" * 32)


def last(plan: Plan, before: WorkerFacts) -> WorkerFacts:
    """The host once the whole plan is done."""
    found = plan.steps[-1].after if plan.steps else before
    assert isinstance(found, WorkerFacts)
    return found


def deployed(wanted: Release, facts: WorkerFacts = EMPTY, now: datetime = NOW) -> WorkerFacts:
    return last(RECIPE.deploy(facts, wanted, now, "deploy"), facts)


def keys(plan: Plan) -> list[str]:
    return [step.key for step in plan.steps]


def only(plan: Plan, key: str) -> Step:
    (found,) = (step for step in plan.steps if step.key == key)
    return found


def test_a_first_deploy_makes_everything_in_order() -> None:
    plan = RECIPE.deploy(EMPTY, release(), NOW, "deploy")
    assert keys(plan) == ["account", "folders", "upload", "build", "activate"]
    assert plan.release == f"20261201T101500-{release().digest[:8]}"
    after = last(plan, EMPTY)
    assert (after.current, after.previous, after.unit.active) == (plan.release, None, "active")


def test_what_is_deployed_needs_no_second_deploy() -> None:
    assert RECIPE.deploy(deployed(release()), release(), NOW, "deploy").is_empty


@pytest.mark.parametrize(
    "unit",
    [
        UnitFacts("unit a\n", "failed", "enabled"),
        UnitFacts("unit a\n", "active", "disabled"),
        UnitFacts("somebody's\n", "active", "enabled"),
        UnitFacts(None),
    ],
)
def test_a_release_whose_unit_is_not_as_it_should_be_is_activated_again(unit: UnitFacts) -> None:
    facts = replace(deployed(release()), unit=unit)
    assert keys(RECIPE.deploy(facts, release(), NOW, "deploy")) == ["activate"]


def test_only_wheels_that_are_nowhere_on_the_host_are_sent() -> None:
    plan = RECIPE.deploy(deployed(release("a")), release("b"), NOW, "deploy")
    acts = only(plan, "upload").acts
    assert [act.files[0].name for act in acts if isinstance(act, PutTree)] == [
        "dsparkctl-0.1.0-py3-none-any.whl"
    ]
    assert not [act for act in acts if isinstance(act, PutFile)]
    links = [act.argv for act in only(plan, "build").acts if isinstance(act, Run)]
    (link,) = (argv for argv in links if argv[:2] == ("cp", "--link"))
    assert link[-1].endswith("/wheels/torch-2.13.0-cp311-cp311-linux_x86_64.whl")


def test_an_upload_goes_on_in_the_same_folder_at_every_attempt() -> None:
    first = RECIPE.deploy(EMPTY, release(), NOW, "deploy")
    second = RECIPE.deploy(EMPTY, release(), NOW + timedelta(hours=1), "deploy")
    assert only(first, "upload").acts == only(second, "upload").acts
    assert first.release != second.release


def test_a_complete_release_is_marked_last_and_built_where_it_stays() -> None:
    acts = only(RECIPE.deploy(EMPTY, release(), NOW, "deploy"), "build").acts
    kept = [str(act) for act in acts if not isinstance(act, Remove)]
    assert kept[-1].startswith(f"write /opt/dspark/releases/{ID}/.complete")
    venv = [act for act in acts if isinstance(act, Run) and "venv" in act.argv]
    assert venv[0].argv[-1] == f"/opt/dspark/releases/{ID}/venv"


def test_activation_can_be_taken_back_to_the_release_that_served() -> None:
    facts = deployed(release("a"))
    step = only(RECIPE.deploy(facts, release("b"), NOW, "deploy"), "activate")
    links = [act for act in step.undo if isinstance(act, Switch)]
    assert links[0].target == f"releases/{facts.current}"
    assert isinstance(step.undo[-1], Gate)  # and is seen to draft again
    assert step.undo[-1].identity == "ab" * 32


def test_a_first_deploy_that_fails_leaves_no_unit_that_runs() -> None:
    step = only(RECIPE.deploy(EMPTY, release(), NOW, "deploy"), "activate")
    said = [str(act) for act in step.undo]
    assert any("disable --now" in text for text in said)
    assert not any(isinstance(act, Gate) for act in step.undo)


def test_a_rollback_goes_to_what_served_before_and_not_to_a_half_release() -> None:
    facts = deployed(release("b"), deployed(release("a")), NOW + timedelta(hours=1))
    plan = RECIPE.rollback(facts, None, "rollback")
    assert (keys(plan), plan.release) == (["activate"], facts.previous)
    half = ReleaseFacts("20250101T000000-00000000", is_complete=False)
    with pytest.raises(NoPlan, match="no complete release of that name"):
        RECIPE.rollback(facts.but(releases=(*facts.releases, half)), half.id, "rollback")
    with pytest.raises(NoPlan, match="serves already"):
        RECIPE.rollback(facts, facts.current, "rollback")
    with pytest.raises(NoPlan, match="no previous release"):
        RECIPE.rollback(EMPTY, None, "rollback")


def test_pruning_keeps_what_is_used_what_is_new_and_what_failed() -> None:
    facts = EMPTY
    for n, mark in enumerate("abcd"):
        facts = deployed(release(mark), facts, NOW + timedelta(hours=n))
    failed = ReleaseFacts("20261130T000000-12345678", is_complete=True)
    facts = facts.but(releases=(failed, *facts.releases))
    plan = RECIPE.deploy(facts, release("a"), NOW + timedelta(hours=9), "deploy")
    after = last(plan, facts)
    ids = {one.id for one in after.releases}
    assert {after.current, after.previous, failed.id} <= ids
    assert only(plan, "prune").is_optional
    assert len([one for one in after.releases if one.id in after.healthy]) <= 3


def test_undeploy_takes_the_worker_away_and_a_second_one_does_nothing() -> None:
    plan = RECIPE.undeploy(deployed(release()), "undeploy", purge=False)
    removed = [str(act.path) for act in plan.steps[0].acts if isinstance(act, Remove)]
    assert removed == ["/opt/dspark/current", "/opt/dspark/previous"]
    assert RECIPE.undeploy(EMPTY, "undeploy", purge=False).is_empty


def test_two_plans_of_the_same_things_have_one_hash_and_of_others_another() -> None:
    hashes = {RECIPE.deploy(EMPTY, release(mark), NOW, "deploy").hash for mark in "aab"}
    assert len(hashes) == 2


marks = st.sampled_from("abc")


@st.composite
def hosts(draw: st.DrawFn) -> WorkerFacts:
    """A host in any state that deploys, failures and power cuts may leave."""
    facts = EMPTY
    for n in range(draw(st.integers(0, 4))):
        wanted = release(draw(marks))
        plan = RECIPE.deploy(facts, wanted, NOW - timedelta(days=9 - n), "deploy")
        if plan.is_empty:
            continue
        done = draw(st.integers(1, len(plan.steps)))
        after = plan.steps[done - 1].after
        assert isinstance(after, WorkerFacts)
        facts = after
    if draw(st.booleans()):
        half = ReleaseFacts(
            f"20200101T000000-{release('a').digest[:8]}", False, release("a").digest
        )
        facts = facts.but(releases=(*facts.releases, half))
    if draw(st.booleans()):
        facts = facts.but(unit=replace(facts.unit, active="failed"))
    is_spoilt: bool = draw(st.booleans())
    if facts.releases and is_spoilt:
        spoilt = replace(facts.releases[0], altered=("dspark.yaml",))
        facts = facts.but(releases=(spoilt, *facts.releases[1:]))
    return facts


@given(hosts(), marks)
def test_from_any_state_a_deploy_leads_where_a_second_one_does_nothing(
    facts: WorkerFacts, mark: str
) -> None:
    plan = RECIPE.deploy(facts, release(mark), NOW, "deploy")
    after = last(plan, facts)
    served = after.release(after.current)
    assert served is not None
    assert (served.digest, served.is_complete, served.altered) == (release(mark).digest, True, ())
    assert RECIPE.deploy(after, release(mark), NOW, "deploy").is_empty
    assert after.release(after.previous) is not None or after.previous is None


@given(hosts(), marks, st.integers(0, 9))
def test_a_deploy_that_ends_after_any_step_is_completed_by_the_next(
    facts: WorkerFacts, mark: str, n_done: int
) -> None:
    plan = RECIPE.deploy(facts, release(mark), NOW, "deploy")
    cut = plan.steps[min(n_done, len(plan.steps)) - 1].after if plan.steps and n_done else facts
    assert isinstance(cut, WorkerFacts)
    again = RECIPE.deploy(cut, release(mark), NOW + timedelta(hours=1), "deploy")
    served = last(again, cut).release(last(again, cut).current)
    assert served is not None
    assert served.digest == release(mark).digest


@given(hosts(), marks)
def test_nothing_that_serves_or_served_is_ever_removed(facts: WorkerFacts, mark: str) -> None:
    plan = RECIPE.deploy(facts, release(mark), NOW, "deploy")
    removed = {act.path.name for step in plan.steps for act in step.acts if isinstance(act, Remove)}
    good = facts.release(facts.current)
    if good is not None and good.is_complete and not good.altered:
        assert facts.current not in removed
    assert last(plan, facts).previous not in removed
