"""Command groups: the top one, which loads a command only when it is called, and plain ones.

Decides how commands are found and how help looks (plain text: it starts fast and needs no colour).
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup


class Entry(NamedTuple):
    """A command that is not loaded yet: its module, which holds a Typer `app`, and its help."""

    module: str
    help: str
    app: str = "app"
    """What the Typer is called in the module."""


def new_app(
    help_text: str | None = None,
    *,
    cls: type[TyperGroup] | None = None,
    add_completion: bool = False,
) -> typer.Typer:
    """A Typer of this house: a group with its help text, or, without one, a single command."""
    return typer.Typer(
        cls=cls,
        help=help_text,
        add_completion=add_completion,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def lazy_group(entries: Mapping[str, Entry]) -> type[TyperGroup]:
    """A group class of these commands.

    Help, suggestions and completion see stand-ins with the table's one-line help; only when a
    command line names a command is its module imported.
    """

    class LazyGroup(TyperGroup):
        def __init__(self, **attrs: Any) -> None:
            super().__init__(**attrs)
            for name, entry in entries.items():
                self.add_command(TyperCommand(name, help=entry.help))

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            name, _, rest = super().resolve_command(ctx, args)
            if name is None:  # only while completing a command line that names none yet
                return name, None, rest
            entry = entries[name]
            command = typer.main.get_command(getattr(import_module(entry.module), entry.app))
            command.name = name
            return name, command, rest

    return LazyGroup
