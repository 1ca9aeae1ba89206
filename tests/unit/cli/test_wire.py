"""`dsparkctl wire`: captures in, JSON out, and back (§5, §6)."""

import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dsparkctl.cli.app import run
from dsparkctl.cli.wire import _MAX_INPUT_BYTES

GOLDEN = Path(__file__).parents[2] / "golden/wire/messages.json"
MESSAGES: dict[str, dict[str, Any]] = {m["name"]: m for m in json.loads(GOLDEN.read_text())}
STEP = MESSAGES["step_two_entries"]
PING = MESSAGES["ping"]["hex"]


class Ran(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


class Wire:
    """Runs `dsparkctl wire …` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def __call__(self, *args: str, stdin: bytes = b"") -> Ran:
        self._monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = run(["wire", *args])
        return Ran(code, *self._capsys.readouterr())

    def form(self, *args: str, stdin: bytes = b"") -> dict[str, Any]:
        """The object that `decode` printed."""
        ran = self("decode", *args, stdin=stdin)
        assert (ran.code, ran.err) == (0, "")
        found: dict[str, Any] = json.loads(ran.out)
        return found

    def refused(self, *args: str, stdin: bytes = b"") -> str:
        """The one line of a usage error; nothing stands on stdout."""
        ran = self(*args, stdin=stdin)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.count("\n") == 1
        return ran.err


@pytest.fixture
def wire(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Wire:
    return Wire(capsys, monkeypatch)


@pytest.mark.parametrize("name", MESSAGES)
def test_every_golden_message_is_decoded_to_its_fields_and_encoded_to_its_bytes(
    wire: Wire, tmp_path: Path, name: str
) -> None:
    """§6."""
    golden = MESSAGES[name]
    form = wire.form(golden["hex"])
    assert form["header"] == golden["header"]
    rows = tmp_path / "rows"
    saved = tmp_path / "message.json"
    saved.write_text(json.dumps(golden))
    more: list[str] = []
    if "step_header" in golden:
        rows.write_bytes(bytes.fromhex(golden["hex"])[32 + golden["step_header"]["rows_offset"] :])
        more = ["--rows", str(rows)]
    assert wire("encode", str(saved), *more) == Ran(0, golden["hex"] + "\n", "")
    saved.write_text(json.dumps(form))
    assert wire("encode", str(saved), *more).out == golden["hex"] + "\n"


def test_hex_may_be_written_as_people_copy_it(wire: Wire) -> None:
    pairs = [PING[i : i + 2] for i in range(0, len(PING), 2)]
    plain = wire.form(PING)
    for text in (
        PING.upper(),
        "0x" + PING,
        ":".join(pairs),
        " ".join(f"0x{pair}" for pair in pairs),
        "\n".join(pairs) + "\n",
    ):
        assert wire.form(text) == plain
        assert wire.form("-", stdin=text.encode()) == plain


def test_a_capture_may_be_binary_or_hex_with_or_without_its_prefix(
    wire: Wire, tmp_path: Path
) -> None:
    """§5."""
    binary = bytes.fromhex(STEP["hex"])
    prefix = bytes.fromhex(STEP["tcp_length_prefix"])
    plain = wire.form(STEP["hex"])
    file = tmp_path / "capture"
    for content in (binary, STEP["hex"].encode()):
        file.write_bytes(content)
        assert wire.form(str(file)) == plain
        assert wire.form("-", stdin=content) == plain
    framed = {**plain, "tcp_length_prefix": "20080000"}
    for content in (prefix + binary, (prefix + binary).hex().encode()):
        file.write_bytes(content)
        assert wire.form(str(file)) == framed
        assert wire.form("-", stdin=content) == framed


def test_json_is_one_line(wire: Wire) -> None:
    ran = wire("decode", PING, "--json")
    assert ran.out.count("\n") == 1
    assert json.loads(ran.out) == wire.form(PING)
    ran = wire("encode", "-", "--json", stdin=ran.out.encode())
    assert json.loads(ran.out) == {"bytes": 32, "hex": PING}


def test_a_direction_can_be_forced(wire: Wire) -> None:
    """§6.6: a PING says nothing of its direction."""
    assert wire.form(PING)["direction"] == "either"
    assert wire.form(PING, "--request")["direction"] == "request"
    assert wire.form(PING, "--reply")["direction"] == "reply"
    assert "STEP reply body at offset 32" in wire.refused("decode", STEP["hex"], "--reply")
    assert "exclude each other" in wire.refused("decode", PING, "--reply", "--request")


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (PING[:-2], "AppHeader at offset 0: 31 bytes"),
        ("58" + PING[2:], "magic at offset 0: 0x31505358"),
        (PING + "00", "body_len at offset 20: 0, but 1 bytes follow"),
        (STEP["hex"][:-2], "body_len at offset 20: 2048, but 2047 bytes follow"),
        ("21080000" + STEP["hex"], "length prefix at offset 0: 2081, but 2080 bytes follow"),
    ],
)
def test_malformed_input_is_one_line_that_names_field_and_offset(
    wire: Wire, tmp_path: Path, data: str, complaint: str
) -> None:
    """§6."""
    assert complaint in wire.refused("decode", data)
    file = tmp_path / "capture"
    file.write_bytes(bytes.fromhex(data))
    line = wire.refused("decode", str(file))
    assert complaint in line
    assert str(file) in line


@pytest.mark.parametrize("source", ["no-such-file", "abc", "zz" * 5000, "x\0y", ""])
def test_what_is_neither_hex_nor_a_file_is_said_so(wire: Wire, source: str) -> None:
    assert "neither an even number of hex digits nor a file" in wire.refused("decode", source)


def test_what_is_neither_hex_nor_a_message_is_refused(wire: Wire) -> None:
    assert "AppHeader at offset 0" in wire.refused("decode", "-")
    assert "magic at offset 0" in wire.refused("decode", "-", stdin=b"GET / HTTP/1.1\r\n" * 4)
    assert "magic at offset 0" in wire.refused("decode", "-", stdin=b"\xff" * 64)


def test_a_folder_and_a_huge_input_are_refused(wire: Wire, tmp_path: Path) -> None:
    assert str(tmp_path) in wire.refused("decode", str(tmp_path))
    assert str(tmp_path) in wire.refused("encode", str(tmp_path))
    huge = tmp_path / "h"
    with huge.open("wb") as file:
        file.truncate(_MAX_INPUT_BYTES + 1)
    assert "no one message" in wire.refused("decode", str(huge))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"", "line 1 column 1: not JSON"),
        (b"{", "line 1 column 2: not JSON"),
        (b"\xff", "byte 0: not UTF-8"),
        (b"[" * 100_000, "not JSON"),
        (b'{"header": {}, "header": {}}', "key 'header' stands twice"),
        (b'{"header": {"seq": ' + b"9" * 5000 + b"}}", "not JSON"),
        (b"[]", "message: expected an object, got a list"),
        (b'{"header": {"magic": NaN}}', "header.magic: nan, expected 0 to 4294967295"),
        (b'{"header": {}}', "header.magic: missing"),
    ],
)
def test_json_that_spells_no_message_is_one_line(wire: Wire, text: bytes, complaint: str) -> None:
    line = wire.refused("encode", "-", stdin=text)
    assert complaint in line
    assert "stdin: " in line


def test_rows_must_fit_and_must_be_there(wire: Wire, tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    rows.write_bytes(bytes(7))
    text = json.dumps(STEP).encode()
    line = wire.refused("encode", "-", "--rows", str(rows), stdin=text)
    assert "rows: 7 bytes, but 5 rows have 384 bytes each" in line
    assert "No such file" in wire.refused("encode", "-", "--rows", "no-such-file", stdin=text)
