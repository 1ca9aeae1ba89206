"""What a deploy will do, as a value: steps on hosts, each with its diff, its acts and its undo.

Decides what a plan is and its hash; a dry run prints the same object that `execute` runs. Refuses
to know how a step is decided (`recipe`, `sparks`) and how an act is done (`acts`).
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from dsparkctl.rollout.host import Host, Progress


class Tell(NamedTuple):
    """How an act that takes long tells a person about it."""

    say: Callable[[str], None] = lambda _: None
    """One line."""
    progress: Callable[[str], Progress | None] = lambda _: None
    """What is told of the upload of the thing that is named; None: nobody looks."""


class Act(Protocol):
    """One thing done to one host, as a value. Its text is one line and says all that it does: file
    contents by their sha256. Doing it again after it was done, or half done, must be harmless."""

    def apply(self, host: Host, tell: Tell) -> None:
        """Do it; HostError when it is not certain that it is done."""

    def __str__(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Step:
    """What is done on one host as a whole, and taken back as a whole.

    When one of its acts fails, `undo` is applied from its first act to its last, and then the
    `undo` of the steps before it, the latest first. A step that leaves nothing which a later run
    would not heal needs no undo. After an undo the command ends with exit code 8.
    """

    key: str
    """A short word for history and tests: `build`, `activate`, …"""
    title: str
    """For a person, in the imperative: "build release 20261201T101500-1a2b3c4d"."""
    host: str
    """The host's name in `dspark.yaml`."""
    acts: tuple[Act, ...]
    undo: tuple[Act, ...] = ()
    diff: str = ""
    """Unified diffs of the files that change; empty where the title says it all."""
    is_optional: bool = False
    """Its failure is told, but fails nothing (pruning)."""
    after: object = None
    """The facts of its host once it is done, as foreseen; the next step is decided from these."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps in their order."""

    command: str
    """What the operator asked for: `deploy x86host`."""
    steps: tuple[Step, ...] = ()
    release: str = ""
    """The id of the release that it is about, where there is one."""
    notes: tuple[str, ...] = ()
    """What a person should know and no step changes."""

    @property
    def is_empty(self) -> bool:
        """Nothing would change."""
        return not self.steps

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that are changed, in the order in which that begins."""
        return tuple(dict.fromkeys(step.host for step in self.steps))

    @property
    def hash(self) -> str:
        """12 hex digits over everything the plan does; stands in the history."""
        acts = [
            [step.key, step.host, [str(act) for act in step.acts], [str(act) for act in step.undo]]
            for step in self.steps
        ]
        text = json.dumps([self.command, self.release, acts])
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def then(self, other: "Plan") -> "Plan":
        """This plan and, when all of it is done, the other one."""
        return Plan(
            self.command,
            self.steps + other.steps,
            self.release or other.release,
            self.notes + other.notes,
        )
