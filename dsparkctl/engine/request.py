"""One request of the small engine: its tokens, and how far the target has computed them.

Decides when a request is done. Refuses to know who else runs, and what a tensor is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Request:
    """A prompt, and `n_wanted` tokens to follow it.

    Like the engine it stands for, a request whose memory is needed elsewhere loses its keys and
    values, not its tokens. Here `preempt_after` says when: after that many tokens, once.
    """

    request_id: str
    prompt: Sequence[int]
    n_wanted: int
    preempt_after: int | None = None
    eos_token: int | None = None
    slot: int | None = None
    """None while it waits."""
    tokens: list[int] = field(default_factory=list)
    """The prompt, and what was sampled since; never a draft."""
    n_computed: int = 0
    """Leading positions whose keys and values lie in the slot."""
    drafts: list[int] = field(default_factory=list)
    """What the target verifies in the next step; a draft that was not accepted is forgotten."""

    def __post_init__(self) -> None:
        self.tokens = [*self.prompt]

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

    @property
    def n_output(self) -> int:
        return len(self.tokens) - len(self.prompt)

    @property
    def n_left(self) -> int:
        """Tokens that are there and not computed; 1 when it decodes."""
        return len(self.tokens) - self.n_computed

    @property
    def is_done(self) -> bool:
        ends = self.n_output > 0 and self.tokens[-1] == self.eos_token
        return ends or self.n_output >= self.n_wanted

    @property
    def is_due_for_preemption(self) -> bool:
        return self.preempt_after is not None and self.n_output >= self.preempt_after

    def take(self, sampled: Sequence[int]) -> None:
        """What the target sampled in this step; nothing counts behind the end."""
        for token in sampled:
            if self.is_done:
                return
            self.tokens.append(token)
