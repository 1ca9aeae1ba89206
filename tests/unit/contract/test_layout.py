"""Records declared as tables (§6)."""

import struct
from collections import namedtuple
from typing import Annotated, Any, NamedTuple

import pytest

from dsparkctl.contract.layout import (
    Column,
    i32,
    i64,
    layout_of,
    pack,
    raw,
    record,
    text,
    u8,
    u16,
    u32,
    u32s,
    u64,
    unpack,
)


@record(size=54)
class Sample(NamedTuple):
    a: Annotated[int, u8(0)]
    b: Annotated[int, u8(1)]
    c: Annotated[int, u16(2)]
    d: Annotated[int, u32(4)]
    e: Annotated[int, u64(8)]
    f: Annotated[int, i32(16)]
    g: Annotated[int, i64(20)]
    h: Annotated[tuple[int, ...], u32s(28, 3)]
    i: Annotated[bytes, raw(40, 6)]
    j: Annotated[bytes, text(46, 8)]


SAMPLE = Sample(1, 2, 3, 4, 5, -6, -7, (8, 9, 10), b"ab\0cd\0", b"spark")


def test_values_lie_little_endian_and_without_gaps() -> None:
    """§6: little-endian, offsets in bytes."""
    assert pack(SAMPLE) == (
        b"\1\2"
        b"\3\0"
        b"\4\0\0\0"
        b"\5\0\0\0\0\0\0\0"
        b"\xfa\xff\xff\xff"
        b"\xf9\xff\xff\xff\xff\xff\xff\xff"
        b"\x08\0\0\0\x09\0\0\0\x0a\0\0\0"
        b"ab\0cd\0"
        b"spark\0\0\0"
    )


def test_unpack_reverses_pack_at_any_offset_of_any_buffer() -> None:
    for kind in (bytes, bytearray, memoryview):
        assert unpack(Sample, kind(b"xyz" + pack(SAMPLE)), 3) == SAMPLE


def test_text_loses_its_padding_and_raw_bytes_keep_theirs() -> None:
    """§6.2: names are NUL-padded, digests are whole."""
    found = unpack(Sample, pack(SAMPLE))
    assert (found.i, found.j) == (b"ab\0cd\0", b"spark")
    full = SAMPLE._replace(j=b"12345678")
    assert unpack(Sample, pack(full)) == full


def test_arrays_come_back_as_tuples() -> None:
    assert unpack(Sample, pack(SAMPLE)).h == (8, 9, 10)


@pytest.mark.parametrize("changed", [{"a": 256}, {"c": -1}, {"e": 1 << 64}, {"f": 1 << 31}])
def test_a_value_that_does_not_fit_is_never_cut(changed: dict[str, Any]) -> None:
    with pytest.raises(struct.error):
        pack(SAMPLE._replace(**changed))


def declared(size: int, **columns: Column) -> Any:
    cls: Any = namedtuple("Wrong", [*columns])  # type: ignore[misc]  # known only here
    cls.__annotations__ = {name: Annotated[int, column] for name, column in columns.items()}
    return record(size)(cls)


@pytest.mark.parametrize(
    ("size", "columns", "complaint"),
    [
        (9, {"a": u32(0), "b": u32(5)}, "declared at 5, the fields before it end at 4"),
        (7, {"a": u32(0), "b": u32(3)}, "declared at 3, the fields before it end at 4"),
        (12, {"a": u32(0), "b": u32(4)}, "fields end at 8, declared size is 12"),
    ],
    ids=["a gap", "an overlap", "a wrong size"],
)
def test_a_table_that_does_not_add_up_is_refused_when_it_is_declared(
    size: int, columns: dict[str, Column], complaint: str
) -> None:
    with pytest.raises(TypeError, match=complaint):
        declared(size, **columns)


def test_a_table_that_adds_up_can_be_read_back() -> None:
    cls = declared(8, a=u32(0), b=u32(4))
    layout = layout_of(cls)
    assert (layout.name, layout.size) == ("Wrong", 8)
    assert [(name, *column) for name, column in layout.fields] == [
        ("a", 0, "u32", "I"),
        ("b", 4, "u32", "I"),
    ]
