"""The generated language: what holds of every text, and of the prompts that a seed gives."""

from collections import Counter
from itertools import pairwise

from dsparkctl.engine.prompts import (
    MAX_PROMPT,
    MIN_PROMPT,
    PATTERNS,
    State,
    following,
    prompts,
    text,
)
from dsparkctl.engine.words import CLASS_SIZE, CLASSES, FIRST_IDS, NOISE_TOKEN_ID, VOCABULARY


def test_every_token_is_a_word_of_its_own_and_classes_are_of_one_size() -> None:
    assert len(set(VOCABULARY)) == len(VOCABULARY) == 256
    assert all(word.isprintable() and " " not in word for word in VOCABULARY)
    assert {len(words.split()) for words in CLASSES.values()} == {CLASS_SIZE}
    assert all(VOCABULARY[FIRST_IDS[c]] == words.split()[0] for c, words in CLASSES.items())


def test_patterns_end_in_an_ender_and_hold_no_other() -> None:
    assert all(pattern.index("E") == len(pattern) - 1 for pattern in PATTERNS)


def test_one_walk_goes_through_every_state_before_it_comes_back() -> None:
    """So no text loops within thousands of words, wherever it starts."""
    start = state = State(0, 0, 0, 0)
    seen = set()
    while state not in seen:
        seen.add(state)
        state = following(state)
    assert state == start
    assert len(seen) == 3 * sum(map(len, PATTERNS)) * CLASS_SIZE


def test_the_same_seed_gives_the_same_prompts_and_another_gives_others() -> None:
    assert prompts(3, 5) == prompts(3, 5)
    assert prompts(3, 2) == prompts(3, 5)[:2]
    assert prompts(3, 5) != prompts(4, 5)
    assert text(prompts(3, 1)[0][:4]) == "while often guards together."


def test_prompts_are_40_to_160_words_and_hold_no_signs() -> None:
    found = prompts(0, 200)
    lengths = [len(prompt) for prompt in found]
    assert (min(lengths), max(lengths)) == (MIN_PROMPT, MAX_PROMPT) == (40, 160)
    n_words = CLASS_SIZE * len(CLASSES)
    assert n_words <= NOISE_TOKEN_ID
    assert all(0 <= token < n_words for prompt in found for token in prompt)


def test_what_comes_next_is_not_in_the_last_word_alone() -> None:
    """Of the words that follow a word, even the commonest is no safe guess."""
    after: dict[int, Counter[int]] = {}
    for prompt in prompts(0, 400):
        for word, follower in pairwise(prompt):
            after.setdefault(word, Counter())[follower] += 1
    guessed = sum(max(counter.values()) for counter in after.values())
    total = sum(sum(counter.values()) for counter in after.values())
    assert guessed / total < 0.4
