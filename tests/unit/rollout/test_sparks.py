"""Plans for the Sparks (issue 5, part 2): what is installed, and what runs keeps what it had."""

import pytest

from dsparkctl.rollout import env_file
from dsparkctl.rollout.acts import PutFile, Run, Switch
from dsparkctl.rollout.host import HostError
from dsparkctl.rollout.plan import Plan
from dsparkctl.rollout.spark_facts import SparkFacts
from dsparkctl.rollout.sparks import undeploy
from tests.unit.rollout.spark_model import client, running, whole


def titles(plan: Plan) -> list[str]:
    return [f"{step.host} {step.key}" for step in plan.steps]


def test_a_first_deploy_installs_and_writes_on_both_and_restarts_nothing() -> None:
    plan = client().plan([SparkFacts("a"), SparkFacts("b")], "deploy spark", restart=False)
    assert titles(plan) == ["a install", "a variables", "b install", "b variables"]
    assert plan.notes == ("a, b: installed, not live: no engine runs there",)


def test_what_runs_on_is_named_as_installed_and_not_live() -> None:
    wanted = client()
    old = {**wanted.values, f"{env_file.PREFIX}TRIP": "9"}
    facts = [whole(wanted, "a", running(old)), whole(wanted, "b")]
    plan = wanted.plan(facts, "deploy spark", restart=False)
    assert plan.is_empty
    assert plan.notes[0].startswith("a: installed, not live: what runs there keeps what it was")
    assert plan.notes[1] == "b: installed, not live: no engine runs there"


def test_sparks_that_have_everything_need_nothing() -> None:
    wanted = client()
    facts = [whole(wanted, host, running(wanted.values)) for host in "ab"]
    for restart in (False, True):
        plan = wanted.plan(facts, "deploy spark", restart=restart)
        assert plan.is_empty
        assert plan.notes == ()


@pytest.mark.parametrize("why", ["stale", "older code", "down"])
def test_a_restart_is_planned_for_all_ranks_when_one_is_not_live(why: str) -> None:
    """Also after an earlier deploy without --restart, when every file is right already."""
    wanted = client()
    process = {
        "stale": running({**wanted.values, f"{env_file.PREFIX}TRIP": "9"}),
        "older code": running(wanted.values, started_s=50.0),
        "down": None,
    }[why]
    rank_1 = whole(wanted, "b", *([process] if process else []))
    facts = [whole(wanted, "a", running(wanted.values)), rank_1]
    plan = wanted.plan(facts, "deploy spark", restart=True)
    assert titles(plan) == ["b stop", "a stop", "a start", "b start", "a live", "b live"]


def test_the_wheel_is_installed_without_dependencies_and_without_an_index() -> None:
    plan = client().plan([SparkFacts("a")], "deploy spark", restart=False)
    step = next(step for step in plan.steps if step.key == "install")
    assert any(isinstance(act, PutFile) for act in step.acts)
    pip = next(act.argv for act in step.acts if isinstance(act, Run) and "pip" in act.argv)
    assert {"--no-deps", "--no-index"} <= set(pip)
    assert pip[0] == "/opt/vllm/bin/python"


def test_a_mount_is_switched_from_one_whole_folder_to_another() -> None:
    plan = client(python=None, mount="/opt/site").plan([SparkFacts("a")], "t", restart=False)
    (switch,) = (act for step in plan.steps for act in step.acts if isinstance(act, Switch))
    assert (str(switch.link), switch.target) == ("/opt/site", f"site.{'f' * 16}")


def test_undeploy_takes_the_units_addition_away_before_the_file_that_it_names() -> None:
    wanted = client()
    plan = undeploy(wanted.fleet, [whole(wanted, "a"), SparkFacts("b")], "undeploy --sparks")
    assert titles(plan) == ["a undeploy"], "where nothing is, nothing is done"
    texts = [str(act) for act in plan.steps[0].acts]
    unit = texts.index("remove /etc/systemd/system/vllm.service.d/dspark.conf")
    assert unit < texts.index("remove /etc/dspark/client.env")
    assert any("pip uninstall --quiet --yes" in text for text in texts)
    assert plan.notes == ()


def test_undeploy_of_a_mount_removes_the_link_and_our_folders_and_no_one_elses() -> None:
    wanted = client(kind="venv", unit=None, python=None, mount="/opt/site")
    plan = undeploy(wanted.fleet, [whole(wanted, "a")], "undeploy --sparks")
    commands = [act.argv for act in plan.steps[0].acts if isinstance(act, Run)]
    assert ("rm", "-f", "--", "/opt/site") in commands
    (find,) = (argv for argv in commands if argv[0] == "find")
    assert find[find.index("-name") + 1] == "site." + "[0-9a-f]" * 16
    assert "take /etc/dspark/client.env out of your own start command" in plan.notes[0]


def test_undeploy_leaves_the_files_of_an_engine_that_runs_on_them() -> None:
    wanted = client()
    facts = [whole(wanted, "a", running({})), whole(wanted, "b", running(wanted.values))]
    with pytest.raises(HostError, match=r"^b: the engine runs on this client; stop it"):
        undeploy(wanted.fleet, facts, "undeploy --sparks")
