"""Every parser against the kept corpus and some thousand spoilt inputs (issue 6, part 5). `make
fuzz` does the same with a million, guided by coverage."""

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from tests.fuzz.mutation import mutated
from tests.fuzz.targets import TARGETS, Target

CORPUS = Path(__file__).with_name("corpus")
SEED = 20261201
FEW = {"wire": 400, "fleet": 200, "safetensors": 300, "model_config": 300}


@pytest.mark.parametrize("name", TARGETS)
def test_what_was_found_once_is_bearable_for_ever(name: str) -> None:
    kept = sorted((CORPUS / name).iterdir())
    assert kept, "make fuzz keeps a corpus"
    for path in kept:
        TARGETS[name](path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_spoilt_inputs_raise_what_is_expected_and_nothing_else(name: str) -> None:
    target = TARGETS[name]
    seeds = [*target.seeds()]
    for number, data in enumerate(islice(mutated(seeds, random.Random(SEED)), FEW.get(name, 3000))):
        try:
            target(data)
        except Exception as error:
            raise AssertionError(f"input {number} of seed {SEED}: {data!r}") from error


@pytest.mark.parametrize("name", TARGETS)
def test_a_good_input_is_read(name: str) -> None:
    """Without one that passes, a target would only ever see errors."""
    target, n_good = TARGETS[name], 0
    for data in target.seeds():
        try:
            target.run(data)
        except target.expected:
            continue
        n_good += 1
    assert n_good


def test_the_mutations_reach_deep_enough_to_find_a_planted_fault() -> None:
    def run(data: bytes) -> None:
        if data[:2] == b"ab" and b"\xff\xff\xff\xff" in data:
            raise IndexError

    def seeds() -> Iterator[bytes]:
        yield b"abcdefgh"

    target = Target(run, (ValueError,), seeds)
    inputs = islice(mutated([*target.seeds()], random.Random(SEED)), 5000)

    def all_of_them() -> None:
        for data in inputs:
            target(data)

    with pytest.raises(IndexError):
        all_of_them()
