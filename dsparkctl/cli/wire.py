"""`dsparkctl wire`: a message of the contract as JSON, and JSON as a message's bytes (§5, §6).

Decides how a capture is read: hex (blanks, colons and `0x` are skipped) or binary, from the
command line, a file or stdin.
"""

import json
import re
import sys
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

from dsparkctl.cli import render
from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.cli.group import new_app
from dsparkctl.config.files import write_whole
from dsparkctl.contract.codes import MAGIC
from dsparkctl.contract.errors import WireError
from dsparkctl.contract.framing import PREFIX_BYTES
from dsparkctl.contract.jsonform import MAX_CAPTURE_BYTES, Direction, decode, encode
from dsparkctl.contract.jsonrecord import FormError

app = new_app("Decode and encode messages of the contract.")

_MAGIC_BYTES = MAGIC.to_bytes(4, "little")
_FILLING = re.compile(r"0[xX]|[\s:]+")
_MAX_INPUT_BYTES = 4 * MAX_CAPTURE_BYTES
"""Hex with a blank or a colon between its bytes, and some more."""

Json = Annotated[bool, typer.Option("--json", help="One JSON object on one line.")]


@app.command("decode")
def decode_command(
    source: Annotated[str, typer.Argument(metavar="HEX|FILE|-", help="The message's bytes.")],
    request: Annotated[bool, typer.Option("--request", help="Read it as a request.")] = False,
    reply: Annotated[bool, typer.Option("--reply", help="Read it as a reply.")] = False,
    as_json: Json = False,
) -> None:
    """Print a message's fields as JSON; a TCP length prefix is recognised."""
    if request and reply:
        raise Stop(Exit.USAGE, "--request and --reply exclude each other")
    forced = Direction.REQUEST if request else Direction.REPLY if reply else None
    try:
        form = decode(_capture(source), forced)
    except WireError as error:
        raise Stop(Exit.USAGE, f"{_place(source)}: {error}") from None
    if as_json:
        render.json_line(form)
    else:
        render.data(json.dumps(form, indent=1, allow_nan=False))


@app.command("encode")
def encode_command(
    source: Annotated[str, typer.Argument(metavar="FILE.json|-", help="A message as JSON.")],
    rows: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A STEP's row block (default: zeros).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the bytes of a message as hex; its JSON is what decode prints."""
    block = None if rows is None else _read(rows)
    try:
        message = encode(_load(source), block)
    except FormError as error:
        raise Stop(Exit.USAGE, f"{_place(source)}: {error}") from None
    if as_json:
        render.json_line({"bytes": len(message), "hex": message.hex()})
    else:
        render.data(message.hex())


def _capture(source: str) -> bytes:
    """The message's bytes. What reads as hex is hex, so a file of such a name is `./beef`."""
    digits = _FILLING.sub("", source)
    if source != "-" and _is_hex(digits):
        return bytes.fromhex(digits)
    if source != "-" and not _exists(source):
        raise Stop(
            Exit.USAGE,
            f"{_place(source)}: neither an even number of hex digits nor a file that is there",
        )
    found = _read(None if source == "-" else Path(source))
    if _MAGIC_BYTES in (found[:4], found[PREFIX_BYTES : PREFIX_BYTES + 4]):
        return found
    try:
        digits = _FILLING.sub("", found.decode("ascii"))
    except UnicodeDecodeError:
        return found
    return bytes.fromhex(digits) if _is_hex(digits) else found


def _is_hex(digits: str) -> bool:
    return bool(re.fullmatch(r"(?:[0-9a-fA-F]{2})+", digits))


def _exists(source: str) -> bool:
    try:
        return bool(source) and Path(source).exists()
    except (OSError, ValueError):  # too long for a name, or a NUL in it
        return False


def _read(path: Path | None) -> bytes:
    """At most `_MAX_INPUT_BYTES` of a file, or of stdin."""
    if path is None:
        found = sys.stdin.buffer.read(_MAX_INPUT_BYTES + 1)
    else:
        try:
            with path.open("rb") as file:
                found = file.read(_MAX_INPUT_BYTES + 1)
        except OSError as error:
            raise Stop(Exit.USAGE, f"{path}: {error.strerror}") from None
    if len(found) > _MAX_INPUT_BYTES:
        raise Stop(Exit.USAGE, f"{path or 'stdin'}: over {_MAX_INPUT_BYTES} bytes, no one message")
    return found


def _load(source: str) -> Any:
    try:
        text = _read(None if source == "-" else Path(source)).decode("utf-8-sig")
        return json.loads(text, object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        reason = f"byte {error.start}: not UTF-8 text"
    except json.JSONDecodeError as error:
        reason = f"line {error.lineno} column {error.colno}: not JSON: {error.msg}"
    except (RecursionError, ValueError) as error:
        reason = f"not JSON: {str(error).splitlines()[0]}"
    raise Stop(Exit.USAGE, f"{_place(source)}: {reason}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice!a} stands twice in one object")
    return found


def _place(source: str) -> str:
    """The input's name in an error; hex is long and no name."""
    if source == "-":
        return "stdin"
    if _exists(source) or len(source) <= 60:
        return source or '""'
    return f"{source[:24]}... ({len(source)} characters)"


@app.command()
def dissector(
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Instead of Wireshark's folder of personal plugins."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Install a Wireshark dissector for DSP1: TCP streams and flight recordings.

    It is one Lua file; removing it uninstalls it.
    """
    folder = to or Path.home() / ".local" / "lib" / "wireshark" / "plugins"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Stop(Exit.FAILED, f"{folder}: cannot be made: {error.strerror}") from None
    path = folder / "dsp1.lua"
    write_whole(path, files("dsparkctl.cli").joinpath("dsp1.lua").read_bytes())
    if as_json:
        render.json_line({"written": str(path)})
    else:
        render.note(f"{path}: written; tshark -r FILE shows DSP1, on TCP ports 18620 and 18621")
