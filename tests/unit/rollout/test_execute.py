"""The only runner (issue 5 §2): order, undo in reverse, history, exit codes."""

import pytest

from dsparkctl.exits import Exit
from dsparkctl.rollout.acts import Run
from dsparkctl.rollout.execute import Outcome, Result, execute
from dsparkctl.rollout.host import HostError, SshError
from dsparkctl.rollout.plan import Plan, Step
from tests.unit.rollout.doubles import RecordingHost


def step(
    name: str, *, undo: bool = False, host: str = "x86host", is_optional: bool = False
) -> Step:
    return Step(
        name,
        f"do {name}",
        host,
        (Run((f"make-{name}",)),),
        (Run((f"undo-{name}",)),) if undo else (),
        is_optional=is_optional,
    )


class Course:
    """Executes and remembers."""

    def __init__(self, *steps: Step, fails: tuple[str, ...] = ()) -> None:
        self.hosts = {name: RecordingHost(name) for name in {step.host for step in steps}}
        for host in self.hosts.values():
            host.fails = set(fails)
        self.history: list[tuple[str, Result]] = []
        self.plan = Plan("deploy", steps)

    def run(self) -> Outcome:
        return execute(self.plan, self.hosts, record=self._record)

    def _record(self, step: Step, result: Result, _said: str) -> None:
        self.history.append((step.key, result))

    @property
    def said(self) -> list[str]:
        return [text for host in self.hosts.values() for text in host.said]


def test_steps_run_in_their_order_and_each_is_recorded() -> None:
    course = Course(step("a"), step("b", undo=True))
    outcome = course.run()
    assert course.said == ["make-a", "make-b"]
    assert course.history == [("a", Result.OK), ("b", Result.OK)]
    assert (outcome.exit, outcome.done) == (Exit.OK, course.plan.steps)


def test_a_failure_takes_back_the_failing_step_and_those_before_it_latest_first() -> None:
    course = Course(step("a", undo=True), step("b"), step("c", undo=True), fails=("make-c",))
    outcome = course.run()
    assert course.said == ["make-a", "make-b", "make-c", "undo-c", "undo-a"]
    results = [Result.OK, Result.OK, Result.FAILED, Result.UNDONE, Result.UNDONE]
    assert course.history == [*zip("abcca", results, strict=True)]
    assert (outcome.exit, [s.key for s in outcome.undone]) == (Exit.ROLLED_BACK, ["c", "a"])
    assert [s.key for s in outcome.done] == ["b"]


def test_a_failed_undo_is_exit_9_and_says_why() -> None:
    course = Course(step("a", undo=True), step("b"), fails=("make-b", "undo-a"))
    outcome = course.run()
    assert outcome.exit == Exit.ROLLBACK_FAILED
    assert "undo-a" in str(outcome.undo_error)
    assert course.history[-1] == ("a", Result.UNDO_FAILED)


def test_without_an_undo_a_failure_is_no_rollback() -> None:
    course = Course(step("a"), step("b"), fails=("make-b",))
    assert course.run().exit == Exit.FAILED


def test_a_dead_link_is_exit_4_and_work_on_another_host_makes_it_partial() -> None:
    assert Outcome((), step("a"), SshError("x")).exit == Exit.SSH
    other = step("b", host="spark-a")
    assert Outcome((other,), step("a"), SshError("x")).exit == Exit.PARTIAL


def test_an_optional_step_fails_nothing() -> None:
    course = Course(step("a", is_optional=True), step("b"), fails=("make-a",))
    outcome = course.run()
    assert (outcome.exit, [s.key for s in outcome.done]) == (Exit.OK, ["b"])
    assert len(outcome.remarks) == 1


def test_a_history_that_cannot_be_written_takes_nothing_back() -> None:
    course = Course(step("a", undo=True))

    def lost(*_: object) -> None:
        raise HostError("x86host: disk full")

    outcome = execute(course.plan, course.hosts, record=lost)
    assert (outcome.exit, course.said) == (Exit.OK, ["make-a"])
    assert "not recorded" in outcome.remarks[0]


def test_an_interrupt_is_recorded_and_raised_on() -> None:
    course = Course(step("a", undo=True))

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    course.hosts["x86host"].check = interrupt  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyboardInterrupt):
        course.run()
    assert course.history == [("a", Result.INTERRUPTED)]


def test_the_hash_follows_what_is_done() -> None:
    one, two = Plan("deploy", (step("a"),)), Plan("deploy", (step("b"),))
    assert one.hash == Plan("deploy", (step("a"),)).hash
    assert len({one.hash, two.hash, Plan("rollback", one.steps).hash}) == 3
