"""A fixed little-endian record, declared once as a table and used in both directions.

Decides how a declared table becomes bytes and back, and refuses a table with a gap, an overlap or
a wrong size when it is declared. Knows no message, no meaning, no bound on a value.

A record is a NamedTuple whose annotations carry the contract's columns::

    @record(size=8)
    class ReqStatus(NamedTuple):
        status: Annotated[int, u16(0)]
        window_rows: Annotated[int, u16(2)]
        generation: Annotated[int, u32(4)]
"""

import struct
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, get_type_hints

Buffer = bytes | bytearray | memoryview

R = TypeVar("R", bound=tuple[Any, ...])


class Column(NamedTuple):
    """Where a field lies and how its bytes read."""

    offset: int
    type: str
    """The contract's type: `u8` to `u64`, `i32`, `i64`, `u32[n]`, `u8[n]`, `text[n]`."""
    code: str
    """Its `struct` codes, as many values as the field has."""

    @property
    def size(self) -> int:
        return struct.calcsize("<" + self.code)


def u8(offset: int) -> Column:
    return Column(offset, "u8", "B")


def u16(offset: int) -> Column:
    return Column(offset, "u16", "H")


def u32(offset: int) -> Column:
    return Column(offset, "u32", "I")


def u64(offset: int) -> Column:
    return Column(offset, "u64", "Q")


def i32(offset: int) -> Column:
    return Column(offset, "i32", "i")


def i64(offset: int) -> Column:
    return Column(offset, "i64", "q")


def u32s(offset: int, count: int) -> Column:
    """A tuple of `count` u32."""
    return Column(offset, f"u32[{count}]", "I" * count)


def raw(offset: int, count: int) -> Column:
    """Exactly `count` bytes."""
    return Column(offset, f"u8[{count}]", f"{count}s")


def text(offset: int, count: int) -> Column:
    """At most `count` bytes, NUL-padded on the wire and bare in the record."""
    return Column(offset, f"text[{count}]", f"{count}s")


class Field(NamedTuple):
    """A field of a declared record: its name and its column."""

    name: str
    column: Column


class Layout:
    """The compiled table of one record class."""

    def __init__(self, cls: type[Any], size: int) -> None:
        hints = get_type_hints(cls, include_extras=True)
        self.name = cls.__name__
        self.size = size
        self.fields = tuple(Field(name, hints[name].__metadata__[0]) for name in cls._fields)
        end = 0
        for field in self.fields:
            if field.column.offset != end:
                raise TypeError(
                    f"{self.name}.{field.name}: declared at {field.column.offset}, the fields "
                    f"before it end at {end}"
                )
            end += field.column.size
        if end != size:
            raise TypeError(f"{self.name}: fields end at {end}, declared size is {size}")
        self.codes = "".join(field.column.code for field in self.fields)
        self.struct = struct.Struct("<" + self.codes)
        self._make: Callable[[Any], Any] = cls._make
        self._plain = all(f.column.type[0] != "t" and len(f.column.code) == 1 for f in self.fields)

    def flat(self, record: tuple[Any, ...]) -> tuple[Any, ...]:
        """The record's values as `struct` takes them, arrays spread out."""
        if self._plain:
            return record
        values: list[Any] = []
        for value in record:
            if isinstance(value, tuple):
                values.extend(value)
            else:
                values.append(value)
        return tuple(values)

    def group(self, values: tuple[Any, ...]) -> Any:
        """The record of `struct`'s flat values; the reverse of `flat`."""
        if self._plain:
            return self._make(values)
        grouped: list[Any] = []
        at = 0
        for _, column in self.fields:
            if column.type.startswith("u32["):
                n = len(column.code)
                grouped.append(values[at : at + n])
                at += n
            else:
                value = values[at]
                grouped.append(value.rstrip(b"\0") if column.type.startswith("text") else value)
                at += 1
        return self._make(grouped)


_LAYOUTS: dict[type[Any], Layout] = {}


def record(size: int) -> Callable[[type[R]], type[R]]:
    """Declare a NamedTuple as a record of `size` bytes; TypeError if its table does not add up."""

    def declare(cls: type[R]) -> type[R]:
        _LAYOUTS[cls] = Layout(cls, size)
        return cls

    return declare


def layout_of(cls: type[Any]) -> Layout:
    return _LAYOUTS[cls]


def pack(value: tuple[Any, ...]) -> bytes:
    """A record's bytes; `struct.error` when a value does not fit its field."""
    layout = _LAYOUTS[type(value)]
    return layout.struct.pack(*layout.flat(value))


def unpack(cls: type[R], data: Buffer, offset: int = 0) -> R:
    """The record that lies at `offset`; the caller has checked that it is there."""
    layout = _LAYOUTS[cls]
    found: R = layout.group(layout.struct.unpack_from(data, offset))
    return found
