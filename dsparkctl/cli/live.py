"""A table that stays in place on a terminal, drawn by rich.

Decides its look. Colours keep to NO_COLOR, which rich honours itself.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

Show = Callable[[str, Sequence[tuple[str, str, str]], str], None]
"""Draw: the title, lines of name, value and unit, and a remark below (empty: none)."""


@contextmanager
def live_table() -> Iterator[Show]:
    """The table is on the screen while the block runs, and its last state stays there."""
    console = Console()
    with Live(console=console, auto_refresh=False) as live:

        def show(title: str, rows: Sequence[tuple[str, str, str]], remark: str) -> None:
            live.update(drawn(title, rows, remark), refresh=True)

        yield show


def drawn(title: str, rows: Sequence[tuple[str, str, str]], remark: str) -> Table:
    """The table at one moment."""
    below = Text("\n".join(map(_printable, remark.split("\n"))))
    table = Table(title=Text(title), caption=below, show_header=False, box=None, min_width=60)
    table.add_column()
    table.add_column(justify="right", style="bold")
    table.add_column(style="dim")
    for name, value, unit in rows:
        table.add_row(*(Text(_printable(cell)) for cell in (name, value, unit)))
    return table


def _printable(text: str) -> str:
    """A worker's words must not steer the terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
