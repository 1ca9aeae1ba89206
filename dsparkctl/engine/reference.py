"""What the target says by itself: the same prompts without drafts, scheduler and prefix cache.

Decides nothing but the order of its work: all requests of a batch start together and go on token by
token. It shares no rule with the engine, so that a fault of the engine's shows.
"""

from collections.abc import Sequence
from typing import NamedTuple

from dsparkctl.engine.target import Span, Target


class Question(NamedTuple):
    """A prompt, and how many tokens shall follow it unless `eos_token` comes first."""

    prompt: Sequence[int]
    n_wanted: int
    eos_token: int | None = None


def reference(target: Target, questions: Sequence[Question], n_slots: int) -> list[list[int]]:
    """The tokens behind each prompt, in order; `n_slots` of them run together."""
    return [
        output
        for start in range(0, len(questions), n_slots)
        for output in _together(target, questions[start : start + n_slots])
    ]


def _together(target: Target, questions: Sequence[Question]) -> list[list[int]]:
    outputs: list[list[int]] = [[] for _ in questions]
    ahead = [Span(slot, 0, q.prompt) for slot, q in enumerate(questions) if q.n_wanted]
    while ahead:
        choices = target.forward(ahead).logits.argmax(-1).tolist()
        spans, ahead, row = ahead, [], -1
        for slot, first_pos, tokens in spans:
            row += len(tokens)
            token = choices[row]
            outputs[slot].append(token)
            question = questions[slot]
            if len(outputs[slot]) < question.n_wanted and token != question.eos_token:
                ahead.append(Span(slot, first_pos + len(tokens), (token,)))
    return outputs
