"""docs/cli.md, made of the commands' own help: `python -m tests.house.cli_reference`."""

import argparse
import os
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

import typer

from dspark_worker import bench_command, options, replay_command
from dsparkctl.cli.app import COMMANDS, PROGRAM

_COLUMNS = 100


def rendered() -> str:
    """Every command's help, in the order of `dsparkctl --help`."""
    os.environ["COLUMNS"] = str(_COLUMNS)
    parts = [
        "# The commands\n\nMade of the commands' own `--help`; a test holds the two together.\n"
    ]
    for name, entry in COMMANDS.items():
        own = _OWN_PROGRAM.get(name, {})
        texts = [
            *_own_help(name, own),
            *(
                (title, text)
                for title, text in _help(getattr(import_module(entry.module), entry.app), name)
                if title.rpartition(" ")[2] not in own
            ),
        ]
        parts += [f"## {title}\n```\n{text.strip()}\n```\n" for title, text in texts]
    return "\n".join(parts)


def _help(app: typer.Typer, name: str) -> Iterator[tuple[str, str]]:
    yield from _walk(typer.main.get_command(app), f"{PROGRAM} {name}")


def _walk(command: Any, path: str) -> Iterator[tuple[str, str]]:
    commands = getattr(command, "commands", {})
    if not commands:
        context = command.make_context(path, [], resilient_parsing=True, terminal_width=_COLUMNS)
        yield path, command.get_help(context)
    for name, one in commands.items():
        yield from _walk(one, f"{path} {name}")


_OWN_PROGRAM = {
    "worker": {"serve": options.add_flags, "replay": replay_command.add_flags},
    "bench": {"round": bench_command.add_round_flags},
}
"""Commands whose flags are parsed by the worker's program."""


def _own_help(
    group: str, commands: Mapping[str, Callable[[argparse.ArgumentParser], None]]
) -> Iterator[tuple[str, str]]:
    for name, add_flags in commands.items():
        path = f"{PROGRAM} {group} {name}"
        parser = argparse.ArgumentParser(
            prog=path,
            formatter_class=lambda prog: argparse.HelpFormatter(prog, width=_COLUMNS),
        )
        add_flags(parser)
        yield path, parser.format_help()


if __name__ == "__main__":
    print(rendered(), end="")  # noqa: T201 -- this program's purpose
