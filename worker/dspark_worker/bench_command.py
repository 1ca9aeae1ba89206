"""`bench round`: the flags. The rest needs torch and is `dspark_worker.bench`'s."""

import argparse
from pathlib import Path
from typing import Any, Final

from dspark_worker.bench.shapes import MAX_REQUESTS, SHAPES
from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.exits import Exit

_DECODE_ROWS: Final = 6


def add_flags(parser: argparse.ArgumentParser) -> None:
    what = parser.add_subparsers(dest="what", required=True)
    text = "how long a round takes, part by part, beside its matrix products alone"
    add_round_flags(what.add_parser("round", help=text, description=text, allow_abbrev=False))


def run(given: argparse.Namespace) -> int:
    """Measure and print; CheckpointError for a model that cannot be had."""
    try:
        from dspark_worker.bench.perform import perform
    except ImportError as error:
        raise CheckpointError(
            f"a bench needs {error.name}: pip install 'dsparkctl[worker]'"
        ) from error
    perform(given)
    return Exit.OK


def add_round_flags(parser: argparse.ArgumentParser) -> None:
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--checkpoint", type=Path, metavar="DIR", help="measure this checkpoint")
    model.add_argument(
        "--synthetic",
        choices=SHAPES,
        default="mid",
        help="or random weights: of the live shape, of a smaller one, of a test's (default: mid)",
    )
    add = parser.add_argument
    add("--requests", type=_number(1, MAX_REQUESTS), default=1, metavar="1..4", help="of a round")
    add("--rows", type=_number(1, 65535), default=_DECODE_ROWS, metavar="N",
        help="new rows of each request (default: 6)")  # fmt: skip
    add("--n-out", type=_number(0, 255), default=0, metavar="N", help="drafts asked for; 0: all")
    add("--append", action="store_true", help="rows alone, no drafts: a prefill")
    add("--rounds", type=_number(2, 1_000_000), default=50, metavar="N", help="(default: 50)")
    add("--growth", action="store_true",
        help="a table over requests, rows and n_out instead")  # fmt: skip
    add("--rss-rounds", type=_number(0, 10_000_000), default=0, metavar="N",
        help="then play N more rounds and watch the memory of this process")  # fmt: skip
    add("--device", default="cpu", metavar="cpu|cuda:N")
    add("--dtype", choices=("float32", "bfloat16"), default="float32")
    add("--kv-quant", default="auto", choices=("auto", "none", "mxfp8_32", "v4_record_64"))
    add("--threads", type=_number(1, 256), default=1, metavar="N", help="of torch (default: 1)")
    add("--json", action="store_true", help="one JSON object")


def _number(low: int, high: int) -> Any:
    def number(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"expected a number in {low}..{high}, got {text}")
        return int(text)

    return number
