"""How many drafts of a request are worth verifying: the depth policy `conf` (§2, §6.3).

Decides from confidences alone. A confidence says how likely a draft is right if all before it are,
so their product says how likely the target gets that far; where it falls below a threshold, a row
of the target would be computed for nothing. Zero confidence, which is what every fallback writes,
means depth 0: the cost of the target alone (§10).
"""

from collections.abc import Sequence
from typing import Final

THRESHOLD: Final = 0.1
"""A verified row costs the target little more than none; one in ten that it saves pays for it."""


def depth(confidence: Sequence[float], cap: int, threshold: float = THRESHOLD) -> int:
    """Leading drafts to verify, at most `cap`: nothing behind it counts, whatever it holds."""
    survival = 1.0
    for n, value in enumerate(confidence[:cap]):
        survival *= value
        if not survival >= threshold:  # NaN stops it too
            return n
    return min(cap, len(confidence))
