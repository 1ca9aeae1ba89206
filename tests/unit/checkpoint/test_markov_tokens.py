"""Which Markov files are accepted, and what is said of the others (model specification §10)."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.checkpoint.markov_tokens import parse_markov_tokens

PATH = Path("/m/markov_top_tokens.json")
V = 50


def parse(value: object) -> tuple[int, ...]:
    return parse_markov_tokens(json.dumps(value).encode(), PATH, V)


@given(st.lists(st.integers(0, V - 1), unique=True))
def test_every_accepted_form_gives_the_same_ids_in_the_files_order(ids: list[int]) -> None:
    """Formats (a), (b) and (c) of §10."""
    for form in (
        ids,
        {"version": 1, "vocab_size": V, "tokens": ids},
        {"tokens": ids},
        {"ids": ids, "made_by": "anything"},
        {str(i): {"count": 3} for i in ids},
    ):
        assert parse(form) == tuple(ids)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([1, 2, 50, -1], "[2]: 50; expected a token id in 0..49"),
        ([-1], "[0]: -1; expected a token id in 0..49"),
        ([1, True], "[1]: True; expected"),
        ([1.0], "[0]: 1.0; expected"),
        (["7"], "[0]: '7'; expected"),
        ([[1, 2]], "[0]: a list; expected"),
        ([{"id": 1}], "[0]: an object; expected"),
        ([3, 4, 3], "[2]: 3 stands twice"),
        ({"tokens": [4, 99]}, "tokens[1]: 99; expected"),
        ({"tokens": {"1": 2}}, "tokens: holds an object; expected a list"),
        ({"tokens": [1], "ids": [1]}, "states both tokens and ids"),
        ({"version": 2, "tokens": [1]}, "version: is 2; expected 1"),
        ({"version": True, "tokens": [1]}, "version: is True; expected 1"),
        ({"vocab_size": 51, "tokens": [1]}, "vocab_size: is 51; expected 50"),
        ({"1": 0, "the": 0}, "the key 'the' is no token id"),
        ({"01": 0}, "the key '01' is no token id"),
        ({"50": 0}, "keys[0]: 50; expected a token id"),
        ({"٣": 0}, "is no token id"),
        (7, "holds 7; expected a list of token ids"),
        ("x" * 500, "holds 'xxx"),
        (None, "holds None"),
    ],
)
def test_anything_else_is_refused_in_one_line_that_quotes_it(value: object, said: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        parse(value)
    line = str(caught.value)
    assert line.startswith(f"{PATH}: ")
    assert said in line
    assert "\n" not in line
    assert len(line) < 300


@pytest.mark.parametrize("data", [b"", b"[1,", b"\xff\xfe", b"[" * 100_000, b'{"1":0,"1":0}'])
def test_what_is_no_json_is_refused_too(data: bytes) -> None:
    with pytest.raises(CheckpointError, match=str(PATH)):
        parse_markov_tokens(data, PATH, V)
