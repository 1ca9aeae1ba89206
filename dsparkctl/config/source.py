"""Loads `dspark.yaml`, and says of every fault: file, line, key, what was expected.

Decides how a fault reads. What is allowed stands in `fleet`; the expectation is worded from the
model's own JSON schema, so that the two cannot drift.
"""

import json
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from dsparkctl.config.errors import ConfigError, Problem
from dsparkctl.config.files import read_whole
from dsparkctl.config.fleet import Fleet
from dsparkctl.config.yaml_lines import Document, Key, YamlError, read_yaml

MAX_CONFIG_BYTES: Final = 1 << 18


def load_fleet(path: Path) -> Fleet:
    """The configuration in a file, its relative paths taken from the file's folder.

    ConfigError lists every fault; FileError when the file cannot be read.
    """
    return parse_fleet(read_whole(path, max_bytes=MAX_CONFIG_BYTES), path)


def parse_fleet(data: bytes, path: Path) -> Fleet:
    """The same of bytes that came from `path`."""
    try:
        document = read_yaml(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(Problem(path, line, "", "not UTF-8 text")) from None
    except YamlError as error:
        raise ConfigError(Problem(path, error.line, _dotted(error.key), error.reason)) from None
    try:
        return Fleet.model_validate(document.value, context={"folder": path.parent})
    except ValidationError as error:
        faults = [_problem(path, document, fault) for fault in error.errors(include_url=False)]
        raise ConfigError(*sorted(faults, key=lambda problem: problem.line)) from None


def _problem(path: Path, document: Document, fault: Mapping[str, Any]) -> Problem:
    key: Key = fault["loc"]
    return Problem(path, document.line(key), _dotted(key), _reason(key, fault))


def _reason(key: Key, fault: Mapping[str, Any]) -> str:
    match fault["type"]:
        case "missing":
            return f"missing; expected {_expected(key)}"
        case "extra_forbidden":
            known = list(_schema(key[:-1]).get("properties", ()))
            near = get_close_matches(str(key[-1]), known, n=1)
            return "unknown key" + (f"; did you mean {near[0]}?" if near else "")
        case "value_error":
            said = str(fault["ctx"]["error"])
            return said if ", got " in said else f"{said}, got {_quote(fault['input'])}"
        case _:
            return f"expected {_expected(key)}, got {_quote(fault['input'])}"


def _schema(key: Key) -> dict[str, Any]:
    """The JSON schema of the value at `key`."""
    root = Fleet.model_json_schema()
    at: dict[str, Any] = root
    for part in key:
        at = at.get("items", {}) if isinstance(part, int) else _value_schema(at, part)
        if "$ref" in at:
            at = root["$defs"][at["$ref"].rpartition("/")[2]]
        if "anyOf" in at:
            at = {**at, **next(one for one in at["anyOf"] if one.get("type") != "null")}
    return at


def _value_schema(at: dict[str, Any], key: str) -> dict[str, Any]:
    """Of a section's key, or of any key of a mapping."""
    patterns: dict[str, Any] = at.get("patternProperties", {})
    others = next(iter(patterns.values()), at.get("additionalProperties"))
    found: dict[str, Any] = at.get("properties", {}).get(key) or others or {}
    return found


def _expected(key: Key) -> str:
    schema = _schema(key)
    match schema:
        case {"enum": values}:
            return "one of " + ", ".join(str(value) for value in values)
        case {"type": "integer", "minimum": low, "maximum": high}:
            return f"{low}" if low == high else f"an integer between {low} and {high}"
        case {"type": "boolean"}:
            return "true or false"
        case {"type": "array", "maxItems": limit}:
            return f"a list of at most {limit}"
        case {"type": "object"}:
            return "a section of keys and values"
        case _:
            return str(schema.get("description", "a value"))


def _dotted(key: Key) -> str:
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in key]
    return "".join(parts).removeprefix(".")


def _quote(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a section"
    if isinstance(value, tuple):
        return "a list"
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else f"{text[:76]}..."
