"""`dsparkctl checkpoint`: what lies in a checkpoint's folder, read from its headers alone."""

import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from dsparkctl.checkpoint.files import find_files
from dsparkctl.checkpoint.inspection import Inspection, Row, inspect
from dsparkctl.checkpoint.model_config import read_model_config
from dsparkctl.cli import render
from dsparkctl.cli.exits import Exit
from dsparkctl.cli.group import new_app

app = new_app("Look into a checkpoint.")

MAX_LINES: Final = 20
"""Problems of a kind that a person is shown: one wrong number in a config makes many thousands."""

MAX_JSON: Final = 1000
"""Problems of a kind in the JSON; `n_missing`, `n_unknown` and `n_wrong` count them all."""

_EXPERT = re.compile(r"\.experts\.\d+\.")


@app.callback()
def _group() -> None:
    pass


@app.command("inspect")
def inspect_(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The checkpoint's folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on one line.")] = False,
) -> None:
    """List tensors, formats and sizes, and what is missing, unknown or wrong (then exit 1)."""
    files = find_files(directory)
    found = inspect(files, read_model_config(files))
    if as_json:
        render.json_line(_summary(found))
    else:
        render.table(("tensor", "format", "dtype", "shape", "count", "size"), _lines(found.rows))
        n_bytes = render.size(sum(row.n_bytes for row in found.rows))
        render.data(f"{len(found.rows)} tensors, {n_bytes}, in {len(files.shards)} shards")
    for problem in _first(found, MAX_LINES).problems:
        render.error(str(problem.error()))
    for kind, n in _counts(found).items():
        if n > MAX_LINES:
            render.error(f"... and {n - MAX_LINES} more {kind}")
    if not found.ok:
        raise typer.Exit(Exit.FAILED)


def _lines(rows: tuple[Row, ...]) -> list[tuple[object, ...]]:
    """A line a tensor; the experts of a layer, which are many and alike, share theirs."""
    alike: dict[tuple[str, str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        name = _EXPERT.sub(".experts.*.", row.name)
        shape = "x".join(map(str, row.shape)) or "scalar"
        alike[name, row.format.value, row.dtype, shape].append(row)
    return [
        (*key, len(group), render.size(sum(row.n_bytes for row in group)))
        for key, group in alike.items()
    ]


def _first(found: Inspection, n: int) -> Inspection:
    """With at most `n` problems of each kind."""
    return replace(
        found, wrong=found.wrong[:n], missing=found.missing[:n], unknown=found.unknown[:n]
    )


def _counts(found: Inspection) -> dict[str, int]:
    return {
        "wrong": len(found.wrong),
        "missing": len(found.missing),
        "unknown": len(found.unknown),
    }


def _summary(found: Inspection) -> dict[str, Any]:
    first = _first(found, MAX_JSON)
    return {
        "ok": found.ok,
        "n_bytes": sum(row.n_bytes for row in found.rows),
        "tensors": [
            {
                "name": row.name,
                "format": row.format.value,
                "dtype": row.dtype,
                "shape": list(row.shape),
                "n_bytes": row.n_bytes,
                "file": row.file.name,
            }
            for row in found.rows
        ],
        **{f"n_{kind}": n for kind, n in _counts(found).items()},
        "missing": list(first.missing),
        "unknown": list(first.unknown),
        "wrong": [{"file": p.file.name, "tensor": p.tensor, "what": p.what} for p in first.wrong],
    }
