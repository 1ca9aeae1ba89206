"""Messages as packets of a pcapng file, and back.

Decides the few blocks that are written: one section, one interface of link type USER0, a packet a
message (with what did not fit cut off, and its whole length said), and comments. Reads no more than
it writes, within bounds; everything else in a file is passed over.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

LINK_TYPE: Final = 147
"""LINKTYPE_USER0: `dsparkctl wire dissector` tells Wireshark what it is here."""
MAX_FILE_BYTES: Final = 8 << 30
_MAX_BLOCK_BYTES: Final = 32 << 20

_SECTION, _INTERFACE, _PACKET = 0x0A0D0D0A, 1, 6
_ORDER: Final = 0x1A2B3C4D
_COMMENT, _FLAGS, _TIME_RESOLUTION = 1, 2, 9
_INBOUND, _OUTBOUND = 1, 2
_BLOCK: Final = struct.Struct("<II")
_SECTION_BODY: Final = struct.Struct("<IHHq")
_INTERFACE_BODY: Final = struct.Struct("<HHI")
_PACKET_BODY: Final = struct.Struct("<IIIII")
_OPTION: Final = struct.Struct("<HH")


class FlightError(Exception):
    """A file that is no recording; one line."""


class Packet(NamedTuple):
    """One message, or, with no data, a remark alone."""

    time_ns: int
    """Unix time."""
    is_request: bool
    data: bytes
    """Its beginning, or all of it."""
    n_bytes: int
    """Of the whole message."""
    comment: str = ""

    @property
    def is_whole(self) -> bool:
        return len(self.data) == self.n_bytes


def opening() -> bytes:
    """What a file begins with."""
    section = _block(_SECTION, _SECTION_BODY.pack(_ORDER, 1, 0, -1))
    nanoseconds = _option(_TIME_RESOLUTION, b"\x09")
    return section + _block(_INTERFACE, _INTERFACE_BODY.pack(LINK_TYPE, 0, 0) + nanoseconds)


def packed(packet: Packet) -> bytes:
    """One packet's block. Requests are outbound: the Spark's view, whoever records."""
    high, low = divmod(packet.time_ns, 1 << 32)
    body = _PACKET_BODY.pack(0, high, low, len(packet.data), packet.n_bytes)
    body += packet.data + bytes(-len(packet.data) % 4)
    body += _option(_FLAGS, struct.pack("<I", _OUTBOUND if packet.is_request else _INBOUND))
    if packet.comment:
        body += _option(_COMMENT, packet.comment.encode()[:1000])
    return _block(_PACKET, body)


def read(path: Path) -> Iterator[Packet]:
    """The packets of a file; FlightError when it is none, and where it breaks off in the middle of
    a block (a recording that was cut ends there, quietly)."""
    try:
        size = path.stat().st_size
        file = path.open("rb")
    except OSError as error:
        raise FlightError(f"{path}: cannot be read: {error.strerror}") from None
    if size > MAX_FILE_BYTES:
        file.close()
        raise FlightError(f"{path}: {size} bytes, a recording has at most {MAX_FILE_BYTES}")
    with file:
        is_first = True
        while len(head := file.read(_BLOCK.size)) == _BLOCK.size:
            kind, n_bytes = _BLOCK.unpack(head)
            if is_first and kind != _SECTION:
                break
            is_first = False
            if not _BLOCK.size + 4 <= n_bytes <= _MAX_BLOCK_BYTES or n_bytes % 4:
                raise FlightError(f"{path}: a block of {n_bytes} bytes at {file.tell() - 8}")
            body = file.read(n_bytes - _BLOCK.size)
            if len(body) < n_bytes - _BLOCK.size:
                return
            if kind == _PACKET:
                yield _packet(path, body[:-4])
    if is_first:
        raise FlightError(f"{path}: no pcapng file")


def _packet(path: Path, body: bytes) -> Packet:
    if len(body) < _PACKET_BODY.size:
        raise FlightError(f"{path}: a packet of {len(body)} bytes")
    _, high, low, n_held, n_bytes = _PACKET_BODY.unpack_from(body)
    end = _PACKET_BODY.size + n_held
    if end > len(body):
        raise FlightError(f"{path}: a packet that holds {n_held} bytes does not")
    options = dict(_options(body[end + -n_held % 4 :]))
    flags = int.from_bytes(options.get(_FLAGS, b""), "little")
    return Packet(
        (high << 32) + low,
        flags & 3 == _OUTBOUND,
        body[_PACKET_BODY.size : end],
        n_bytes,
        options.get(_COMMENT, b"").decode("utf-8", "replace"),
    )


def _options(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _OPTION.size <= len(data):
        code, n_bytes = _OPTION.unpack_from(data, at)
        if not code:
            return
        at += _OPTION.size
        yield code, data[at : at + n_bytes]
        at += n_bytes + -n_bytes % 4


def _option(code: int, value: bytes) -> bytes:
    return _OPTION.pack(code, len(value)) + value + bytes(-len(value) % 4)


def _block(kind: int, body: bytes) -> bytes:
    n_bytes = _BLOCK.size + len(body) + 4
    return _BLOCK.pack(kind, n_bytes) + body + n_bytes.to_bytes(4, "little")
