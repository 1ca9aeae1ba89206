"""The only file that prints: data to stdout, everything else to stderr.

Decides how values look: plain lines and tables, exactly one line of JSON for `--json`, colour and
progress only on a terminal, and no colour where NO_COLOR is set.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final, TextIO

_RED: Final = "\x1b[31m"
_PLAIN: Final = "\x1b[0m"
_BAR_CELLS: Final = 30
_REDRAW_S: Final = 0.1


def data(text: str) -> None:
    """What the command was asked for, to stdout."""
    _write(sys.stdout, text)


def json_line(value: Any) -> None:
    """The same for a program: one object, one line."""
    _write(sys.stdout, json.dumps(value, separators=(",", ":"), allow_nan=False))


def note(text: str) -> None:
    """What a person may want to know besides, to stderr."""
    _write(sys.stderr, text)


def error(text: str) -> None:
    """Why the command failed, to stderr."""
    _write(sys.stderr, text, _RED)


def fields(values: dict[str, Any]) -> None:
    """Names and values, one pair a line, values aligned."""
    width = max(map(len, values), default=0)
    for name, value in values.items():
        data(f"{name:<{width}}  {value}")


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns aligned: numbers to the right, words to the left."""
    lines = [list(headings), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    right = [all(isinstance(row[i], (int, float)) for row in rows) for i in range(len(headings))]
    for line in lines:
        cells = [
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(line, widths, right, strict=True)
        ]
        data("  ".join(cells).rstrip())


def size(n_bytes: float) -> str:
    """Bytes as a person reads them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(n_bytes) < 1024:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.1f} TiB"


@contextmanager
def progress(what: str, n_total_bytes: int) -> Iterator[Callable[[int], None] | None]:
    """A bar on stderr while the block runs; None instead of its callback without a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    bar = _Bar(what, n_total_bytes)
    try:
        yield bar.advance
    finally:
        bar.clear()


def upload(what: str) -> Callable[[int, int], None] | None:
    """A bar for one upload, told bytes so far and in all; None without a terminal."""
    if not sys.stderr.isatty():
        return None
    bars: list[_Bar] = []

    def told(n_done: int, n_total: int) -> None:
        bar = bars[0] if bars else _Bar(what, n_total)
        bars[:] = [bar]
        bar.reach(n_done)
        if n_done >= n_total:
            bar.clear()

    return told


class _Bar:
    """Redraws one line of the terminal, ten times a second at most."""

    def __init__(self, what: str, n_total: int) -> None:
        self._what = what
        self._n_total = max(1, n_total)
        self._n_done = 0
        self._start_s = monotonic()
        self._drawn_s = 0.0

    def advance(self, n_bytes: int) -> None:
        self.reach(self._n_done + n_bytes)

    def reach(self, n_done: int) -> None:
        self._n_done = n_done
        now = monotonic()
        if now - self._drawn_s < _REDRAW_S:
            return
        self._drawn_s = now
        share = min(1.0, self._n_done / self._n_total)
        cells = "#" * round(share * _BAR_CELLS)
        rate = size(self._n_done / max(1e-3, now - self._start_s))
        sys.stderr.write(f"\r\x1b[K{self._what} [{cells:<{_BAR_CELLS}}] {share:4.0%} {rate}/s")
        sys.stderr.flush()

    def clear(self) -> None:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def finish() -> None:
    """Flush stdout; when its reader is gone or its disk is full, what is left goes nowhere.

    The interpreter would otherwise try once more while it ends, and complain.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _has_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _cell(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def _write(stream: TextIO, text: str, colour: str = "") -> None:
    """Bytes of a strange file name, or a control character, must not reach the terminal as such."""
    shown = "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
    encoding = stream.encoding or "utf-8"
    shown = shown.encode(encoding, "backslashreplace").decode(encoding)
    stream.write(f"{colour}{shown}{_PLAIN}\n" if colour and _has_colour(stream) else f"{shown}\n")
    stream.flush()
