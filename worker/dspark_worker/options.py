"""The worker's command line: the keys of `dspark.yaml`'s worker section as flags.

Decides how flags and a file come together (a flag wins). What a value may be is said once, in
`dsparkctl.config.fleet`.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import PydanticUndefined

from dsparkctl.config.source import load_fleet
from dsparkctl.config.worker import WorkerSettings

_INTEGER = re.compile(r"-?[0-9]{1,20}", re.ASCII)

_METAVARS = {
    "checkpoint": "DIR",
    "receipt": "FILE",
    "markov": "FILE",
    "hash_cache": "FILE",
    "listen": "ENDPOINT",
    "metrics": "ADDR:PORT",
    "record": "DIR",
    "device": "cpu|cuda:N",
}


class UsageError(Exception):
    """Flags that cannot be used; one line a flag."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """A flag for every key of the section, `--config`, and `--json`."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="take the rest from dspark.yaml"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the ready line as one JSON object"
    )
    for name, field in WorkerSettings.model_fields.items():
        flag = "--" + name.replace("_", "-")
        kind = field.annotation
        text = (field.description or "").replace("null:", "by itself")
        if field.default not in (None, PydanticUndefined, False, True):
            text += f" (default: {_shown(field.default)})"
        text = text.replace("%", "%%")
        if kind is bool and field.default:
            flag = "--no-" + flag.removeprefix("--")
            text = f"do not {text}"
            parser.add_argument(flag, dest=name, action="store_false", default=None, help=text)
        elif kind is bool:
            parser.add_argument(flag, action="store_true", default=None, help=text)
        elif name == "admin":
            parser.add_argument(flag, action="extend", nargs="+", metavar="ENDPOINT", help=text)
        else:
            is_number = kind is int or kind == int | None
            read = _number_or_text if is_number else str
            parser.add_argument(flag, type=read, metavar=_metavar(name, kind), help=text)


def settings_of(arguments: argparse.Namespace) -> WorkerSettings:
    """The settings that flags and file make together; UsageError or ConfigError otherwise."""
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name in WorkerSettings.model_fields
        if (value := getattr(arguments, name)) is not None
    }
    if arguments.config is not None:
        worker = dict(load_fleet(arguments.config).worker)
        given = {name: worker[name] for name in WorkerSettings.model_fields} | given
    try:
        return WorkerSettings.model_validate(given)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        raise UsageError("\n".join(_line(fault["loc"], fault) for fault in faults)) from None


def _line(at: Sequence[int | str], fault: Any) -> str:
    said = str(fault["msg"]).removeprefix("Value error, ")
    if not at:
        return said.replace("identity_from_files: true", "--identity-from-files").replace(
            "a receipt", "--receipt FILE"
        )
    flag = "--" + str(at[0]).replace("_", "-")
    if fault["type"] == "missing":
        return f"{flag} is missing"
    said = said.replace("allow_any_address: true", "--allow-any-address")
    if fault["type"] == "string_pattern_mismatch":
        said = "expected cpu or cuda:N"
    got = fault["input"]
    got = " ".join(map(str, got)) if isinstance(got, tuple) else got
    return f"{flag}: {said[:1].lower()}{said[1:]}" + ("" if "got" in said else f", got {got}")


def _number_or_text(text: str) -> int | str:
    """A key's type is checked by its model; here an integer is only told from a word."""
    return int(text) if _INTEGER.fullmatch(text) else text


def _metavar(name: str, kind: Any) -> str:
    """The words that a key may hold, where there are but a few; else what kind of value it is."""
    parts = (kind, *get_args(kind))
    words = [word for part in parts for word in get_args(part) if isinstance(word, str)]
    return "|".join(words) or _METAVARS.get(name, "N")


def _shown(default: object) -> str:
    return " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
