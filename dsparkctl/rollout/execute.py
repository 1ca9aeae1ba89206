"""The only runner: applies a plan's acts in their order, and takes steps back when one fails.

Decides what a failure means: optional steps fail nothing; otherwise the undo of the failing step
and of every one before it runs, latest first, on the hosts they name. Refuses to know what steps
are for, and never retries: a rerun of the whole command heals.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from dsparkctl.exits import Exit
from dsparkctl.rollout.host import Host, HostError, Hosts, SshError
from dsparkctl.rollout.plan import Act, Plan, Step, Tell


class Result(StrEnum):
    """What became of a step."""

    OK = "ok"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    UNDONE = "undone"
    UNDO_FAILED = "undo failed"


Record = Callable[[Step, Result, str], None]
"""Told of every step how it ended, and what was said; appends to the host's history."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a plan ended."""

    done: tuple[Step, ...]
    """Steps that hold; those taken back are not among them."""
    failed: Step | None = None
    error: HostError | None = None
    """Why it failed; one line that names the host."""
    undone: tuple[Step, ...] = ()
    undo_error: HostError | None = None
    """Why it could not be taken back: the host needs a person."""
    remarks: tuple[str, ...] = ()
    """Failures of optional steps, and what could not be recorded."""

    @property
    def exit(self) -> Exit:
        """The command's exit code."""
        if self.error is None:
            return Exit.OK
        if self.undo_error is not None:
            return Exit.ROLLBACK_FAILED
        if self.undone:
            return Exit.ROLLED_BACK
        if self.done and any(step.host != self._host for step in self.done):
            return Exit.PARTIAL
        return Exit.SSH if isinstance(self.error, SshError) else Exit.FAILED

    def by_host(self, plan: Plan) -> list[tuple[str, str]]:
        """How far each host of the plan came, for a person."""
        found = []
        for host in plan.hosts:
            wanted = [step for step in plan.steps if step.host == host and not step.is_optional]
            n_done = sum(step in self.done for step in wanted)
            said = "done" if n_done == len(wanted) else f"{n_done} of {len(wanted)} steps"
            if self.failed is not None and self.failed.host == host:
                said += f", failed: {self.failed.title}"
            found.append((host, said))
        return found

    @property
    def _host(self) -> str:
        return self.failed.host if self.failed else ""


def execute(
    plan: Plan,
    hosts: Hosts,
    *,
    tell: Tell = Tell(),  # noqa: B008 -- an immutable value
    before: Callable[[Step], None] = lambda _: None,
    record: Record = lambda _step, _result, _said: None,
) -> Outcome:
    """Apply the plan; `hosts` has every host that it names.

    `before` is told of each step as it begins. HostError is caught and becomes the outcome;
    whatever else is raised (an interrupt) is recorded and raised on, nothing taken back: the hosts
    are then as a power cut would leave them, which the next run heals.
    """
    done: list[Step] = []
    remarks: list[str] = []
    for step in plan.steps:
        before(step)
        try:
            _apply(step.acts, hosts[step.host], tell)
        except HostError as error:
            remarks += _note(record, step, Result.FAILED, str(error))
            if step.is_optional:
                remarks.append(f"{step.title}: {error}")
                continue
            return _undo([*done, step], error, hosts, tell, record, remarks)
        except BaseException:
            _note(record, step, Result.INTERRUPTED, "")
            raise
        remarks += _note(record, step, Result.OK, "")
        done.append(step)
    return Outcome(tuple(done), remarks=tuple(remarks))


def _undo(
    steps: list[Step],
    error: HostError,
    hosts: Hosts,
    tell: Tell,
    record: Record,
    remarks: list[str],
) -> Outcome:
    failed = steps[-1]
    held = [step for step in steps[:-1] if not step.undo]
    undone: list[Step] = []
    for step in reversed(steps):
        if not step.undo:
            continue
        tell.say(f"{step.host}: taking back: {step.title}")
        try:
            _apply(step.undo, hosts[step.host], tell)
        except HostError as second:
            remarks += _note(record, step, Result.UNDO_FAILED, str(second))
            left = [one for one in steps[:-1] if one not in undone]
            return Outcome(tuple(left), failed, error, tuple(undone), second, tuple(remarks))
        remarks += _note(record, step, Result.UNDONE, "")
        undone.append(step)
    return Outcome(tuple(held), failed, error, tuple(undone), None, tuple(remarks))


def _apply(acts: tuple[Act, ...], host: Host, tell: Tell) -> None:
    for act in acts:
        act.apply(host, tell)


def _note(record: Record, step: Step, result: Result, said: str) -> tuple[str, ...]:
    """A history that cannot be written (disk full, link cut) must not hide what happened, nor
    take back what holds: it becomes a remark."""
    try:
        record(step, result, said)
    except HostError as error:
        return (f"{step.title}: {result}, but not recorded: {error}",)
    return ()
