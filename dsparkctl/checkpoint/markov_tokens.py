"""`markov_top_tokens.json`: which tokens' bias rows are worth keeping (model specification §10).

Decides what such a file may look like; the live one's form is not public. Its identity runs over
its bytes (§6.7) and asks nothing of them; only who makes a cache of it needs ids. Accepted are a
list of ids; an object with the ids under `tokens` or `ids`, where `version` must be 1 and
`vocab_size` the model's, if they are stated; an object whose keys are the ids.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from dsparkctl.checkpoint.errors import CheckpointError, wrong
from dsparkctl.checkpoint.strict_json import unique_keys

_LISTS: Final = ("tokens", "ids")
_DECIMAL: Final = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


def parse_markov_tokens(data: bytes, path: Path, vocab_size: int) -> tuple[int, ...]:
    """The ids in the file's order, unique and in [0, vocab_size); `path` is for the message.

    CheckpointError quotes the first entry that is not one.
    """
    try:
        top = json.loads(data.decode("utf-8-sig"), object_pairs_hook=unique_keys(path))
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise wrong(path, f"is not valid JSON ({reason[:200]})") from None
    if isinstance(top, list):
        return _checked(top, path, "", vocab_size)
    if not isinstance(top, dict):
        raise wrong(path, f"holds {_shown(top)}; expected a list of token ids, or an object")
    named = [key for key in _LISTS if key in top]
    if not named:
        return _checked([_id_of_key(key, path) for key in top], path, "keys", vocab_size)
    if len(named) > 1:
        raise wrong(path, "states both tokens and ids; keep one")
    for key, only in (("version", 1), ("vocab_size", vocab_size)):
        value = top.get(key, only)
        if type(value) is not int or value != only:
            raise wrong(path, f"is {_shown(value)}; expected {only}", at=key)
    ids = top[named[0]]
    if not isinstance(ids, list):
        raise wrong(path, f"holds {_shown(ids)}; expected a list of token ids", at=named[0])
    return _checked(ids, path, named[0], vocab_size)


def _checked(ids: Sequence[Any], path: Path, at: str, vocab_size: int) -> tuple[int, ...]:
    seen: set[int] = set()
    for n, value in enumerate(ids):
        if type(value) is not int or not 0 <= value < vocab_size:
            expected = f"expected a token id in 0..{vocab_size - 1}"
            raise _offending(path, at, n, f"{_shown(value)}; {expected}")
        if value in seen:
            raise _offending(path, at, n, f"{value} stands twice")
        seen.add(value)
    return tuple(ids)


def _id_of_key(key: str, path: Path) -> int:
    if not _DECIMAL.fullmatch(key):
        raise wrong(path, f"the key {_shown(key)} is no token id, and there is no list of tokens")
    return int(key)


def _offending(path: Path, at: str, n: int, what: str) -> CheckpointError:
    return wrong(path, what, at=f"{at}[{n}]" if at else f"[{n}]")


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list) else ascii(value)[:80]
