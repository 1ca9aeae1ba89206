"""Greedy verification: a draft is accepted when it is what the target itself would have said.

Decides what a step has sampled. Refuses to know logits: the target's choices are token ids. So no
draft can change the output; it can only bring more of it at once.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Verified(NamedTuple):
    """What came of one request's rows."""

    sampled: Sequence[int]
    """The accepted drafts and the target's next token; none in a partial prefill chunk."""
    n_rejected: int
    """Rows whose taps, keys and values are those of wrong drafts; always the last ones."""


NOTHING_SAMPLED = Verified((), 0)


def verify(drafts: Sequence[int], choices: Sequence[int]) -> Verified:
    """`choices[i]` follows what stands before draft i, `choices[-1]` all drafts: one more."""
    n_accepted = 0
    for draft, choice in zip(drafts, choices[:-1], strict=True):
        if draft != choice:
            break
        n_accepted += 1
    return Verified(choices[: n_accepted + 1], len(drafts) - n_accepted)
