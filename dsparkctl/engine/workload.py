"""What the engine is given to do: a seed becomes requests that meet all that a real engine meets.

Decides that every third request continues the text of an earlier one, which the prefix cache then
knows, and that every third is preempted half-way. Pure: the same seed gives the same requests.
"""

from typing import Final

from dsparkctl.engine import prompts
from dsparkctl.engine.request import Request

MAX_PROMPT: Final = 2 * prompts.MAX_PROMPT
"""Tokens: two texts in one."""


def workload(seed: int, n_requests: int, n_tokens: int) -> list[Request]:
    """`n_requests` requests that want `n_tokens` each, in order of arrival."""
    texts = prompts.prompts(seed, n_requests)
    return [
        Request(
            request_id=f"{seed}-{i}",
            prompt=(*texts[i - 2], *texts[i]) if i % 3 == 2 else texts[i],
            n_wanted=n_tokens,
            preempt_after=max(1, n_tokens // 2) if i % 3 == 1 else None,
        )
        for i in range(n_requests)
    ]
