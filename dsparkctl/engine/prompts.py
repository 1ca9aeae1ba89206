"""A generated language and prompts in it, for an engine whose text the repository may carry.

A sentence follows one of twelve patterns of word classes, in one of three moods that nothing spells
out. A word is decided by the word before it, by its own class and by the mood: there is one
permutation for each mood and pair of classes. The next sentence's pattern and mood hang on those of
this one and on its last word. So whoever sees only the last word cannot say what comes next: the
place in the pattern and the mood have to be read from the context, which is what a drafter's tap
rows are for. All steps are one-to-one, and `_SEED` is chosen so that no walk comes back to itself
within thousands of words. Prompts hold a few wrong words; a model must live with them.

The same seed gives the same prompts on every machine and Python version.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from dsparkctl.engine.words import CLASS_SIZE, FIRST_IDS, NOISE_TOKEN_ID, VOCABULARY

__all__ = ["NOISE_TOKEN_ID", "VOCABULARY", "State", "documents", "following", "prompts", "text"]

PATTERNS: Final = (
    "DAPVDNIDLE",
    "TDPMRVDANE",
    "DPIDLVANCVRE",
    "TAPVNILCMVE",
    "PMVDNCPRVE",
    "ANIDALMVPRE",
    "RDNVDPIALE",
    "CDPVNDAPMVRE",
    "IDALDPVDNRE",
    "DNIDPMRVALE",
    "PCPVRIDALE",
    "VDNIALCVDPE",
)
"""Each ends in an ender, and no ender stands elsewhere."""

MIN_PROMPT: Final = 40
MAX_PROMPT: Final = 160

_SEED: Final = 26
_N_MOODS: Final = 3
_LEAPS: Final = (1, 5, 7)
"""How far the pattern moves on, by the new mood."""
WRONG: Final = 0.03
"""Chance that a word of a prompt is another one of its class."""


class State(NamedTuple):
    """Where a text stands: the last word, and its place."""

    mood: int
    pattern: int
    place: int
    number: int
    """Which of its class."""

    @property
    def letter(self) -> str:
        return PATTERNS[self.pattern][self.place]

    @property
    def token(self) -> int:
        return FIRST_IDS[self.letter] + self.number


def _permutations(seed: int) -> dict[tuple[int, str], tuple[int, ...]]:
    chance = random.Random(f"words-{seed}")
    pairs = [one + other for one in FIRST_IDS for other in FIRST_IDS]
    return {
        (mood, pair): tuple(chance.sample(range(CLASS_SIZE), CLASS_SIZE))
        for mood in range(_N_MOODS)
        for pair in pairs
    }


_STEPS: Final = _permutations(_SEED)


def following(state: State) -> State:
    """The one state that comes next in a text without wrong words."""
    mood, pattern, place = state.mood, state.pattern, state.place + 1
    if place == len(PATTERNS[pattern]):
        mood = (mood + state.number) % _N_MOODS
        pattern, place = (pattern + _LEAPS[mood]) % len(PATTERNS), 0
    step = _STEPS[mood, state.letter + PATTERNS[pattern][place]]
    return State(mood, pattern, place, step[state.number])


def documents(chance: random.Random, wrong: float = WRONG) -> Iterator[Iterator[int]]:
    """Endless texts from anywhere in the language, as token ids; `wrong` is the share of those."""
    while True:
        yield _text(chance, wrong)


def prompts(seed: int, n: int) -> list[list[int]]:
    """`n` prompts of 40..160 token ids; none of them is what anything was trained on."""
    chance = random.Random(f"held-out-{seed}")
    found = []
    for document, _ in zip(documents(chance), range(n), strict=False):
        length = chance.randint(MIN_PROMPT, MAX_PROMPT)
        found.append([next(document) for _ in range(length)])
    return found


def text(tokens: Sequence[int]) -> str:
    """The words of token ids, for people."""
    return " ".join(VOCABULARY[token] for token in tokens)


def _text(chance: random.Random, wrong: float) -> Iterator[int]:
    pattern = chance.randrange(len(PATTERNS))
    place = chance.randrange(len(PATTERNS[pattern]))
    state = State(chance.randrange(_N_MOODS), pattern, place, chance.randrange(CLASS_SIZE))
    while True:
        if chance.random() < wrong:
            state = state._replace(number=chance.randrange(CLASS_SIZE))
        yield state.token
        state = following(state)
