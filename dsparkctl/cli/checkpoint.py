"""`dsparkctl checkpoint`: what lies in a checkpoint's folder, read from its headers alone.

What needs the weights themselves (`dequantize`, `convert`) is the worker's program.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer

from dsparkctl.checkpoint.exl3 import Exl3Layer
from dsparkctl.checkpoint.files import find_files
from dsparkctl.checkpoint.inspection import Inspection, Row, inspect
from dsparkctl.checkpoint.model_config import read_model_config
from dsparkctl.cli import render
from dsparkctl.cli.become import become
from dsparkctl.cli.exits import Exit
from dsparkctl.cli.group import new_app

app = new_app("Look into a checkpoint, and unpack it.")

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
    """List tensors, formats and sizes, and what is missing, unknown or wrong (then exit 1).

    Reads headers and configs alone: what is wrong with values is found by the worker.
    """
    files = find_files(directory)
    found = inspect(files, read_model_config(files))
    if as_json:
        render.json_line(_summary(found))
    else:
        render.table(("tensor", "format", "dtype", "shape", "count", "size"), _lines(found.rows))
        _show_exl3(found.exl3_layers)
        n_bytes = render.size(sum(row.n_bytes for row in found.rows))
        shards = "1 shard" if len(files.shards) == 1 else f"{len(files.shards)} shards"
        render.data(f"{len(found.rows)} tensors, {n_bytes}, in {shards}")
    for problem in _first(found, MAX_LINES).problems:
        render.error(str(problem.error()))
    for kind, n in _counts(found).items():
        if n > MAX_LINES:
            render.error(f"... and {n - MAX_LINES} more {kind}")
    if not found.ok:
        raise typer.Exit(Exit.FAILED)


class Dtype(Enum):
    """What packed weights are unpacked to."""

    BF16 = "bf16"
    F32 = "f32"


@app.command()
def dequantize(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A safetensors file.")],
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY", help="A layer's name, as inspect lists it, with a number for *."
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="OUT.safetensors", help="Where to put it.")],
    inner: Annotated[
        bool, typer.Option("--inner", help="The decoded trellis by itself: inner, F16 [in, out].")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT where it exists.")] = False,
) -> NoReturn:
    """Unpack one EXL3 layer: weight, F32 [in, out], so that y = x · weight.

    Sides are as stored, multiples of 128. A layer that is damaged is named with what is wrong.
    """
    flags = ["--inner"] * inner + ["--force"] * force
    become("dequantize", f"--out={out}", *flags, "--", str(file), key)


@app.command()
def convert(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The checkpoint's folder.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A new or empty folder.")],
    to: Annotated[Dtype, typer.Option(help="Dtype of the weights that were packed.")],
) -> NoReturn:
    """Copy a checkpoint with every weight unpacked.

    Tensors that are plain already become f32 with --to f32 and stay as they are with --to bf16: a
    narrower copy would be another model. Where DIR holds DSPARK_COPY_DONE, the files are held
    against it first (exit 10). It stays behind, as all does that is not the drafter's: the copy is
    another set of files, with another identity.
    """
    become("convert", f"--to={to.value}", "--", str(directory), str(out))


def _show_exl3(layers: tuple[Exl3Layer, ...]) -> None:
    """A line for all layers that are packed alike; experts of a projection share a name."""
    if not layers:
        return
    alike: dict[tuple[object, ...], list[Exl3Layer]] = defaultdict(list)
    for layer in layers:
        name = _EXPERT.sub(".experts.*.", f"{layer.prefix}.")[:-1]
        stacked = "" if layer.n_stacked is None else f"{layer.n_stacked}x"
        shape = f"{stacked}{layer.n_in}x{layer.n_out}"
        alike[name, f"{layer.bits:g}", layer.codebook.value, shape].append(layer)
    render.data("")
    render.table(
        ("EXL3 layer", "K", "codebook", "in x out", "count", "bits per weight"),
        [(*key, len(group), f"{_bits_per_weight(group):.3f}") for key, group in alike.items()],
    )
    total = f"{_bits_per_weight(layers):.3f}"
    render.data(f"{len(layers)} EXL3 layers, {total} bits per weight with their scales")
    render.data("")


def _bits_per_weight(layers: Sequence[Exl3Layer]) -> float:
    return 8 * sum(layer.n_bytes for layer in layers) / sum(layer.n_weights for layer in layers)


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
        "exl3": {
            "layers": [_layer_facts(layer) for layer in found.exl3_layers],
            "bits_per_weight": round(_bits_per_weight(found.exl3_layers), 4)
            if found.exl3_layers
            else None,
        },
        **{f"n_{kind}": n for kind, n in _counts(found).items()},
        "missing": list(first.missing),
        "unknown": list(first.unknown),
        "wrong": [{"file": p.file.name, "tensor": p.tensor, "what": p.what} for p in first.wrong],
    }


def _layer_facts(layer: Exl3Layer) -> dict[str, Any]:
    return {
        "name": layer.prefix,
        "K": layer.bits,
        "codebook": layer.codebook.value,
        "in": layer.n_in,
        "out": layer.n_out,
        "stacked": layer.n_stacked,
        "bits_per_weight": round(layer.bits_per_weight, 4),
    }
