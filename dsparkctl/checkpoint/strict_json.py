"""JSON as this house reads it from files it did not write: bounded, and no key said twice.

Refuses to know what the object means; `model_config`, `files` and `header` do.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsparkctl.checkpoint.errors import wrong

MAX_JSON_BYTES = 64 << 20
"""No config, plan or index of a real checkpoint comes near it (the release's index has 5 MB)."""


def read_json_object(path: Path, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Read a file that must hold one JSON object; `CheckpointError` names file and fault."""
    try:
        with path.open("rb") as file:
            text = file.read(max_bytes + 1)
    except OSError as error:
        raise wrong(path, f"cannot be read ({error.strerror or error})") from None
    if len(text) > max_bytes:
        raise wrong(path, f"is larger than {max_bytes} bytes; this is not a file of that kind")
    return parse_object(text, path)


def parse_object(text: bytes, path: Path, what: str = "file") -> dict[str, Any]:
    """Parse bytes that must be one JSON object, no key twice; `path` is for the message."""

    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=unique_keys(path, what))
    except (ValueError, RecursionError) as error:
        reason = str(error) or type(error).__name__
        raise wrong(path, f"the {what} is not valid JSON ({reason})") from None
    if not isinstance(value, dict):
        raise wrong(path, f"the {what} is not a JSON object")
    return value


def unique_keys(
    path: Path, what: str = "file"
) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    """A hook for `json.loads` that refuses an object with a key twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise wrong(path, f"the {what} states this key twice", at=_shown(key))
            found[key] = value
        return found

    return unique


def _shown(key: str) -> str:
    """A key from a foreign file, safe to print: one line, bounded."""
    return key if key.isprintable() and len(key) <= 200 else ascii(key[:200])
