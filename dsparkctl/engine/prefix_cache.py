"""Whose keys and values can be taken over: the prefix cache, with bounded replay (§2).

Decides how many tokens of a request need not be computed again. Sliding windows cannot be taken
over, so of a hit of h tokens the last W are computed once more, and a hit that is no longer than W
is none.

Requests that ended or were preempted leave their tokens on a shelf: a slot that no request owns.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

BLOCK: Final = 16
"""Hits are whole blocks of tokens, as a paged cache has them."""


class Hit(NamedTuple):
    """The first `n_tokens` positions of `slot` hold what another request needs."""

    slot: int
    n_tokens: int
    """h − W"""


class PrefixCache:
    """The shelves; `slots` are those of the target that belong to no request."""

    def __init__(self, slots: Sequence[int], window: int) -> None:
        self._shelves: dict[int, Sequence[int]] = dict.fromkeys(slots, ())
        self._window = window

    def shelve(self, tokens: Sequence[int]) -> int:
        """The slot that shall hold these tokens' keys and values: that of the oldest shelf."""
        slot = next(iter(self._shelves))
        del self._shelves[slot]
        self._shelves[slot] = tokens
        return slot

    def hit(self, tokens: Sequence[int], live: Iterable[tuple[int, Sequence[int]]]) -> Hit | None:
        """The longest one for `tokens`; `live` are slots that requests own, with what they hold.

        The last token is always computed: there is nothing to sample from otherwise.
        """
        best, found = self._window, None
        for slot, held in (*self._shelves.items(), *live):
            n_common = _n_common(tokens[:-1], held) // BLOCK * BLOCK
            if n_common > best:
                best, found = n_common, Hit(slot, n_common - self._window)
        return found


def _n_common(a: Sequence[int], b: Sequence[int]) -> int:
    n = 0
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        n += 1
    return n
