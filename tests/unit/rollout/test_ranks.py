"""Ranks are a unit (issue 5, part 2): observed state decides, and what goes wrong is said."""

from typing import Any

import pytest

from dsparkctl.exits import Exit
from dsparkctl.rollout import ranks
from dsparkctl.rollout.acts import Run, WaitTimedOut
from dsparkctl.rollout.execute import Outcome, execute
from dsparkctl.rollout.plan import Plan
from dsparkctl.rollout.ranks import RankLost
from dsparkctl.rollout.render import RenderError
from dsparkctl.rollout.spark_facts import SparkFacts
from tests.unit.rollout.spark_model import PORT, Spark, client, quick, running

VALUES = client().values


def sparks(**of_b: Any) -> dict[str, Spark]:
    log: list[str] = []
    return {"a": Spark("a", VALUES, log, opens=PORT), "b": Spark("b", VALUES, log, **of_b)}


def restarted(two: dict[str, Spark], **engine: Any) -> Outcome:
    facts = {name: SparkFacts(name, container=one.container) for name, one in two.items()}
    steps = ranks.restart(client(**engine).engine, facts, VALUES)
    return execute(Plan("t", tuple(quick(steps))), {name: one.host() for name, one in two.items()})


DOCKER: dict[str, Any] = {
    "kind": "docker", "unit": None, "container": "vllm", "python": None,
    "mount": "/opt/dspark-site", "start": ("launch",),
}  # fmt: skip


def test_all_stop_then_rank_0_opens_its_port_before_rank_1_starts() -> None:
    two = sparks()
    assert restarted(two).error is None
    assert two["a"].log == ["b stop", "a stop", "a start", "a listens", "b start"]


def test_the_order_is_a_setting() -> None:
    two = sparks()
    assert restarted(two, start_order=(1, 0)).error is None
    assert two["a"].log == ["a stop", "b stop", "b start", "a start", "a listens"]


def test_rank_1_is_not_started_when_rank_0_never_opens_its_port() -> None:
    two = sparks()
    two["a"].opens_never = True
    outcome = restarted(two)
    assert isinstance(outcome.error, WaitTimedOut)
    assert "in vain for rank 0 to listen on port 29501; last seen: 1 process" in str(outcome.error)
    assert "b start" not in two["a"].log
    assert outcome.exit is Exit.PARTIAL


def test_a_rank_0_that_ends_before_its_port_is_open_is_not_waited_for_to_the_deadline() -> None:
    two = sparks()
    two["a"].opens_never, two["a"].dies_after = True, 3
    outcome = restarted(two)
    assert isinstance(outcome.error, RankLost)
    assert "it ended before it opened port 29501" in str(outcome.error)


def test_a_rank_1_that_dies_is_told_by_name() -> None:
    outcome = restarted(sparks(dies_after=1))
    assert isinstance(outcome.error, RankLost)
    assert "b: waited for rank 1 to run with what was written: the engine ended again" in str(
        outcome.error
    )


def test_a_value_that_is_stale_on_rank_1_ends_the_wait_and_is_named() -> None:
    """Another value will not go away; the engine's own start command sets it."""
    two = sparks()
    two["b"].values = {**VALUES, "VLLM_DSPARK_REMOTE_TRIP": "9"}
    outcome = restarted(two)
    assert isinstance(outcome.error, RankLost)
    assert "VLLM_DSPARK_REMOTE_TRIP is stale: 9, expected 3" in str(outcome.error)
    assert [step.host for step in outcome.done if step.key == "live"] == ["a"]


def test_a_variable_that_is_missing_may_come_late_and_is_waited_for() -> None:
    two = sparks()
    two["b"].values = {}
    outcome = restarted(two)
    assert isinstance(outcome.error, WaitTimedOut)
    assert "ENDPOINT is missing: not set, expected tcp://10.0.0.1" in str(outcome.error)


def test_a_rank_that_does_not_stop_keeps_every_rank_from_starting() -> None:
    two = sparks()
    stuck = two["b"].host()
    stuck._answer = lambda argv: None if "-I" not in argv else two["b"]._answer(argv)
    facts = {name: SparkFacts(name) for name in two}
    steps = quick(ranks.restart(client().engine, facts, VALUES))
    outcome = execute(Plan("t", tuple(steps)), {"a": two["a"].host(), "b": stuck})
    assert "in vain for rank 1 to be gone; last seen: 1 process of the engine" in str(outcome.error)
    assert two["a"].log == []


def test_somebody_elses_listener_is_never_taken_for_rank_0s() -> None:
    two = sparks()
    two["a"].port_held = True
    outcome = restarted(two)
    assert "last seen: somebody listens on port 29501 still" in str(outcome.error)
    assert "a start" not in two["a"].log


def test_a_container_that_was_started_again_keeps_its_environment_and_is_refused() -> None:
    two = sparks(container="bb")
    two["a"].container = "aa"
    assert restarted(two, **DOCKER).error is None
    two["a"].keeps_container = True
    outcome = restarted(two, **DOCKER)
    assert "was started again, not made anew, and keeps its old environment" in str(outcome.error)


def test_a_container_is_stopped_in_peace_removed_and_made_anew_never_restarted() -> None:
    facts = {"a": SparkFacts("a", container="aa"), "b": SparkFacts("b")}
    steps = ranks.restart(client(**DOCKER).engine, facts, VALUES)
    said = {
        host: [act.argv for step in steps if step.host == host for act in step.acts
               if isinstance(act, Run)]
        for host in "ab"
    }  # fmt: skip
    assert said["a"] == [
        ("docker", "stop", "--time", "110", "vllm"), ("docker", "rm", "vllm"), ("launch",)
    ]  # fmt: skip
    assert said["b"] == [("launch",)]


@pytest.mark.parametrize("kind", ["venv", "env-file"])
def test_a_restart_that_nobody_said_how_to_do_is_refused_and_never_skipped(kind: str) -> None:
    engine = client(kind=kind, unit=None).engine
    with pytest.raises(RenderError, match=r"engine.stop: missing; --restart needs it"):
        ranks.restart(engine, {}, VALUES)
    engine = client(kind=kind, unit=None, stop=("halt",)).engine
    with pytest.raises(RenderError, match=r"engine.start: missing; --restart needs it"):
        ranks.restart(engine, {}, VALUES)


def test_code_that_was_installed_after_the_engine_began_is_not_live() -> None:
    old = SparkFacts(
        "a", package_digest="d", package_came_s=100.0, processes=(running(VALUES, 90.0),)
    )
    assert ranks.alive(old, VALUES).never == "it runs since before this client was installed"
    new = SparkFacts(
        "a", package_digest="d", package_came_s=100.0, processes=(running(VALUES, 110.0),)
    )
    assert ranks.alive(new, VALUES).is_so


def test_the_texts_of_a_restart_say_what_is_waited_for() -> None:
    """They stand in the plan's hash and in a dry run."""
    steps = ranks.restart(client().engine, {}, VALUES)
    texts = [str(act) for step in steps for act in step.acts]
    assert "wait at most 120 s for rank 0 to be gone, and port 29501 to be free" in texts
    assert "wait at most 900 s for rank 0 to listen on port 29501" in texts
    assert texts[-1] == "wait at most 900 s for rank 1 to run with what was written"
