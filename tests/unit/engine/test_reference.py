"""The target by itself."""

from collections.abc import Sequence
from typing import cast

import pytest

from dsparkctl.engine.reference import Question, reference
from dsparkctl.engine.target import Forward, Span, Target
from tests.unit.engine.toy import ToyTarget, continued

PROMPTS = [[i, *continued([i], 5 + 3 * i)] for i in range(7)]


class Counted(ToyTarget):
    """Notes how many requests each forward has."""

    def __init__(self) -> None:
        super().__init__(4)
        self.n_spans: list[int] = []

    def forward(self, spans: Sequence[Span]) -> Forward:
        self.n_spans.append(len(spans))
        return super().forward(spans)


@pytest.mark.parametrize("n_slots", [1, 3, 4])
def test_it_says_what_follows_each_prompt_however_many_run_together(n_slots: int) -> None:
    target = cast(Target, ToyTarget(4))
    questions = [Question(prompt, 4 + i) for i, prompt in enumerate(PROMPTS)]
    expected = [continued(q.prompt, q.n_wanted) for q in questions]
    assert reference(target, questions, n_slots) == expected


def test_requests_run_together_and_leave_when_they_are_done() -> None:
    target = Counted()
    questions = [Question(PROMPTS[0], 2), Question(PROMPTS[1], 4), Question(PROMPTS[2], 0)]
    outputs = reference(cast(Target, target), questions, 4)
    assert [len(output) for output in outputs] == [2, 4, 0]
    assert target.n_spans == [2, 2, 1, 1]


def test_the_end_token_ends_a_text() -> None:
    tokens = continued(PROMPTS[0], 6)
    question = Question(PROMPTS[0], 6, eos_token=tokens[2])
    first = tokens.index(tokens[2])
    assert reference(cast(Target, ToyTarget(1)), [question], 1) == [tokens[: first + 1]]
