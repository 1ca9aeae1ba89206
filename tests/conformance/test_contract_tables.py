"""CONTRACT.md against the code, both ways: nothing in a table that is not declared, and reverse."""

import inspect
import re
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest

import dsparkctl
from dsparkctl.contract import codes, endpoint, framing, records
from dsparkctl.contract.layout import layout_of

TESTS = Path(__file__).parents[1]
DOCUMENT = (Path(dsparkctl.__file__).parent / "contract/CONTRACT.md").read_text()

Table = list[list[str]]


def sections() -> dict[str, str]:
    """The text under each `###` heading."""
    parts = re.split(r"^#{1,3} ", DOCUMENT, flags=re.MULTILINE)
    return dict(part.split("\n", 1) for part in parts if part)


def table(text: str) -> Table:
    """The cells of the first table in a section, without its headings."""
    lines = [line for line in text.split("\n") if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


SECTIONS = sections()
RECORDS: dict[str, Any] = {
    name: cls
    for name, cls in inspect.getmembers(records, inspect.isclass)
    if cls.__module__ == records.__name__
}
ENUMS: dict[str, Any] = {
    name: cls
    for name, cls in inspect.getmembers(codes, inspect.isclass)
    if cls.__module__ == codes.__name__ and issubclass(cls, IntEnum)
}
FLAGS = {
    "step_flags": codes.STEP_FLAG_NAMES,
    "req_flags": codes.REQ_FLAG_NAMES,
    "reply_flags": codes.REPLY_FLAG_NAMES,
    "capabilities": codes.CAPABILITY_NAMES,
}


def test_the_document_is_of_the_version_that_we_serve() -> None:
    title = DOCUMENT.split("\n", 1)[0]
    assert title.endswith(f"version {dsparkctl.CONTRACT_VERSION}")


def test_every_record_has_its_table_and_every_table_its_record() -> None:
    """§6."""
    titles = {title for title in SECTIONS if title.endswith(" bytes")}
    assert titles == {f"{name}, {layout_of(cls).size} bytes" for name, cls in RECORDS.items()}


@pytest.mark.parametrize("name", RECORDS)
def test_a_records_table_holds_its_fields_in_order(name: str) -> None:
    """§6: offset, type and name of each."""
    layout = layout_of(RECORDS[name])
    rows = table(SECTIONS[f"{name}, {layout.size} bytes"])
    assert [row[:3] for row in rows] == [
        [str(column.offset), column.type, field] for field, column in layout.fields
    ]
    assert all(row[3] for row in rows)


@pytest.mark.parametrize("name", ENUMS)
def test_an_enums_table_holds_its_codes(name: str) -> None:
    """§6.1, §6.2, §9."""
    rows = table(SECTIONS[name])
    assert [row[:2] for row in rows] == [[str(int(code)), code.name] for code in ENUMS[name]]


@pytest.mark.parametrize("name", FLAGS)
def test_a_flags_table_holds_its_bits(name: str) -> None:
    """§6.2, §6.3."""
    rows = table(SECTIONS[name])
    assert {row[1]: 1 << int(row[0]) for row in rows} == FLAGS[name]


def test_every_table_of_codes_is_checked_here() -> None:
    tables = {title for title, text in SECTIONS.items() if table(text)}
    checked = {*ENUMS, *FLAGS, "Constants"}
    others = {title for title in tables if not title.endswith(" bytes")}
    assert others - {title for title in others if title.startswith("Readings")} == checked


def test_constants_have_their_values() -> None:
    """§5, §6.1, §6.4."""
    for name, value, what in table(SECTIONS["Constants"]):
        owner = next(m for m in (codes, framing, endpoint) if hasattr(m, name))
        assert (name, getattr(owner, name)) == (name, int(value, 0))
        assert what


def readings() -> Table:
    return [
        row
        for title, text in SECTIONS.items()
        if title.startswith("Readings")
        for row in table(text)
    ]


def test_every_reading_is_listed_once_and_in_order() -> None:
    names = [row[0] for row in readings()]
    assert names == [f"R{i}" for i in range(1, 42)] + [f"C{i}" for i in range(1, 28)]
    assert all(len(row) == 4 and all(row) for row in readings())


@pytest.mark.parametrize("row", readings(), ids=lambda row: row[0])
def test_the_test_that_settles_a_reading_exists(row: list[str]) -> None:
    cited = re.fullmatch(r"`(test_\w+\.py)(?:::(\w+))?`", row[3])
    assert cited is not None, row[3]
    found = [*TESTS.rglob(cited[1])]
    assert found, f"{cited[1]} is nowhere under tests"
    pattern = rf"^(def|class) {cited[2] or 'test_'}"
    assert any(re.search(pattern, path.read_text(), re.MULTILINE) for path in found)
