"""`dsparkctl checkpoint`: what lies in a checkpoint's folder, read from its headers alone."""

import re
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any

import typer

from dsparkctl.checkpoint.files import find_files
from dsparkctl.checkpoint.inspection import Inspection, Row, inspect
from dsparkctl.checkpoint.model_config import read_model_config
from dsparkctl.cli import render
from dsparkctl.cli.exits import Exit
from dsparkctl.cli.group import new_app

app = new_app("Look into a checkpoint.")

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
    for problem in found.problems:
        render.error(str(problem.error()))
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


def _summary(found: Inspection) -> dict[str, Any]:
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
        "missing": list(found.missing),
        "unknown": list(found.unknown),
        "wrong": [{"file": p.file.name, "tensor": p.tensor, "what": p.what} for p in found.wrong],
    }
