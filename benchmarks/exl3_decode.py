"""How fast EXL3 trellises are decoded on one core, against a plain gather from an equal table.

    python benchmarks/exl3_decode.py [--rounds 7] [--shape 5120x2304 --k 4]

Prints one JSON line a shape. The gather is `torch.index_select` of as many random int32 indices
from 65,536 fp32 numbers. Both are timed twice: with a new result a call, as either is called
without further thought, and into memory that is kept. Thread time of one thread, rounds
interleaved, medians of the rounds' ratios. Target: 1.5 with new results.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from dspark_worker.model.exl3.tiles import decode
from dsparkctl.checkpoint.exl3 import Codebook

N_STATES = 1 << 16


class Shape(NamedTuple):
    n_in: int
    n_out: int
    k: int


LIVE = (
    Shape(15360, 5120, 5),  # main_proj
    Shape(5120, 2304, 4),  # an expert's w1 and w3
    Shape(2304, 5120, 4),  # its w2
    Shape(5120, 8192, 6),  # a sixteenth of the head
)


def seconds(run: Callable[[], object]) -> float:
    start = time.thread_time()
    run()
    return time.thread_time() - start


def measure(shape: Shape, n_rounds: int) -> dict[str, object]:
    n_in, n_out, k = shape
    n_weights = n_in * n_out
    size = (n_in // 16, n_out // 16, 16 * k)
    trellis = torch.randint(-32768, 32768, size, dtype=torch.int16)
    table = torch.randn(N_STATES)
    indices = torch.randint(0, N_STATES, (n_weights,), dtype=torch.int32)
    kept_gather, kept_decode = torch.empty(n_weights), torch.empty(n_in, n_out)
    runs: dict[str, Callable[[], object]] = {
        "gather": lambda: torch.index_select(table, 0, indices),
        "decode": lambda: decode(trellis, Codebook.MUL1, torch.empty(n_in, n_out)),
        "gather_kept": lambda: torch.index_select(table, 0, indices, out=kept_gather),
        "decode_kept": lambda: decode(trellis, Codebook.MUL1, kept_decode),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(n_rounds):
        for name, run in runs.items():
            times[name].append(seconds(run))
    rates = {
        f"{name}_m_per_s": round(n_weights / statistics.median(found) / 1e6)
        for name, found in times.items()
    }
    return {
        **shape._asdict(),
        **rates,
        "ratio": _ratio(times["decode"], times["gather"]),
        "ratio_kept": _ratio(times["decode_kept"], times["gather_kept"]),
    }


def _ratio(ours: list[float], peers: list[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(ours, peers, strict=True)), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--shape", metavar="INxOUT", help="instead of the live model's")
    parser.add_argument("--k", type=int, default=4, help="with --shape")
    args = parser.parse_args()
    torch.set_num_threads(1)
    shapes: tuple[Shape, ...] = LIVE
    if args.shape:
        n_in, n_out = map(int, args.shape.split("x"))
        shapes = (Shape(n_in, n_out, args.k),)
    for shape in shapes:
        print(json.dumps(measure(shape, args.rounds)), flush=True)


if __name__ == "__main__":
    main()
