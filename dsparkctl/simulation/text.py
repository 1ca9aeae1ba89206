"""The text that everybody agrees on: the next token is a pure function of all tokens before it.

A state folds a whole prefix into one number; a tap row is that number, over and over. Whoever holds
the row of the last position can therefore continue the text, and nobody else can.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from dsparkctl.simulation.world import VOCAB_SIZE

START: Final = 0x243F6A8885A308D3
_MASK: Final = (1 << 62) - 1


def following(state: int, token: int) -> int:
    """The state behind one more token."""
    state = (state ^ token) * 0x9E3779B97F4A7C15 & _MASK
    return state ^ state >> 29


def next_token(state: int) -> int:
    """The token that follows, as the target chooses it."""
    return (state >> 17) % VOCAB_SIZE


def row_of(state: int, row_bytes: int) -> bytes:
    """The tap row of a position whose prefix, itself included, has this state."""
    return state.to_bytes(8, "little") * (row_bytes >> 3)


def state_of(row: bytes) -> int:
    return int.from_bytes(row[:8], "little")


def reference(prompt: Sequence[int], n_tokens: int) -> list[int]:
    """Prompt and continuation, `n_tokens` together, by the shortest way."""
    tokens = list(prompt)
    tokens.extend(_continued(prompt, n_tokens - len(prompt)))
    return tokens


def _continued(prompt: Sequence[int], n_tokens: int) -> Iterator[int]:
    state = START
    for token in prompt:
        state = following(state, token)
    for _ in range(n_tokens):
        token = next_token(state)
        state = following(state, token)
        yield token
