"""Records as JSON-able dicts: a field's name and its plain number (§6).

Decides how a field reads as JSON: whole numbers stay numbers, arrays are lists, digests are hex,
names are text. Refuses to know messages, and whether a value makes sense beyond fitting its field.
"""

import struct
from collections.abc import Collection, Mapping, Sequence
from math import isfinite
from typing import Any, TypeVar

from dsparkctl.contract.layout import Column, layout_of

R = TypeVar("R", bound=tuple[Any, ...])

_NOT_FINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


class FormError(ValueError):
    """JSON that says no message; the message is one line and names the field."""


def to_json(record: tuple[Any, ...]) -> dict[str, Any]:
    """The record's fields by name. Text that is not UTF-8 keeps its bytes as lone surrogates."""
    columns = layout_of(type(record)).fields
    return {
        name: _value_to_json(column, value)
        for (name, column), value in zip(columns, record, strict=True)
    }


def from_json(cls: type[R], value: Any, where: str, given: Mapping[str, Any] | None = None) -> R:
    """The record that the dict `value` spells; FormError for a field missing, unknown or unfit.

    `where` is the dict's own name in errors. `given` stands in for fields that may be left out.
    """
    fields = {**(given or {}), **mapping(value, where)}
    columns = layout_of(cls).fields
    known = [field.name for field in columns]
    only(fields, known, f"{where}.")
    values = []
    for name, column in columns:
        if name not in fields:
            raise FormError(f"{where}.{name}: missing")
        values.append(_value_from_json(column, fields[name], f"{where}.{name}"))
    made: R = cls(*values)
    return made


def mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FormError(f"{where}: expected an object, got {quote(value)}")
    return value


def items(value: Any, where: str, n: int | None = None) -> Sequence[Any]:
    """The list `value`, of `n` items where `n` is given."""
    if not isinstance(value, list):
        raise FormError(f"{where}: expected a list, got {quote(value)}")
    if n is not None and len(value) != n:
        raise FormError(f"{where}: expected {n} items, got {len(value)}")
    return value


def only(fields: Mapping[str, Any], known: Collection[str], where: str = "") -> None:
    """FormError for the first field that is not `known`."""
    for name in fields:
        if name not in known:
            raise FormError(f"{where}{_bare(name)}: unknown, expected {', '.join(known)}")


def integer(value: Any, where: str, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise FormError(f"{where}: {quote(value)}, expected {low} to {high}")
    return value


def number_to_json(value: float) -> float | str:
    """A float as JSON has it; the three that JSON lacks are the texts `nan`, `inf`, `-inf`."""
    if isfinite(value):
        return value
    return "nan" if value != value else "inf" if value > 0 else "-inf"


def number_from_json(value: Any, where: str) -> float:
    """The reverse of `number_to_json`, for a value that must fit f32."""
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if type(value) not in (int, float):
        raise FormError(f'{where}: {quote(value)}, expected a number, "nan", "inf" or "-inf"')
    try:
        struct.pack("<f", value)
    except (OverflowError, struct.error):
        raise FormError(f"{where}: {quote(value)}, expected a number that fits f32") from None
    return float(value)


def quote(value: Any) -> str:
    """What was found, short and on one line."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return _short(ascii(value))


def _bare(name: str) -> str:
    return _short(ascii(name)[1:-1])


def _short(shown: str) -> str:
    return shown if len(shown) <= 60 else f"{shown[:56]}..."


def _value_to_json(column: Column, value: Any) -> Any:
    if column.type.startswith("text"):
        return value.decode("utf-8", "surrogateescape")
    if column.type.startswith("u8["):
        return value.hex()
    return list(value) if isinstance(value, tuple) else value


def _value_from_json(column: Column, value: Any, where: str) -> Any:
    if column.type.startswith("text"):
        return _text(value, where, column.size)
    if column.type.startswith("u8["):
        return _digest(value, where, column.size)
    low, high = _range(column)
    if len(column.code) > 1:
        numbers = items(value, where, len(column.code))
        return tuple(integer(n, f"{where}[{i}]", low, high) for i, n in enumerate(numbers))
    return integer(value, where, low, high)


def _range(column: Column) -> tuple[int, int]:
    bits = 8 * struct.calcsize("<" + column.code[0])
    if column.type.startswith("i"):
        return -(1 << bits - 1), (1 << bits - 1) - 1
    return 0, (1 << bits) - 1


def _text(value: Any, where: str, n_bytes: int) -> bytes:
    try:
        found = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else None
    except UnicodeEncodeError:
        found = None
    if found is None or len(found) > n_bytes:
        raise FormError(f"{where}: {quote(value)}, expected text of at most {n_bytes} bytes")
    return found


def _digest(value: Any, where: str, n_bytes: int) -> bytes:
    try:
        found = bytes.fromhex(value) if isinstance(value, str) else b""
    except ValueError:
        found = b""
    if len(found) != n_bytes:
        raise FormError(f"{where}: {quote(value)}, expected {2 * n_bytes} hex digits")
    return found
