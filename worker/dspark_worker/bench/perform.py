"""`bench round`: a drafter, its loads, and what is printed of them.

Decides which loads a growth table is made of, and that every figure of a run comes from one
process, model and machine.
"""

import argparse
import json
import sys
from collections.abc import Iterator

import torch

from dspark_worker import memory
from dspark_worker.bench import report
from dspark_worker.bench.course import Course, Load
from dspark_worker.bench.products import bandwidth
from dspark_worker.bench.shapes import MAX_REQUESTS, SHAPES
from dspark_worker.bench.stopwatch import clock_of
from dspark_worker.bench.synthetic import make_up
from dspark_worker.model.drafter import TorchDrafter
from dspark_worker.model.load import load_drafter
from dspark_worker.options import UsageError
from dsparkctl.checkpoint.errors import CheckpointError

_WARM_UP = 3
_RSS_POINTS = 100


def perform(given: argparse.Namespace) -> None:
    """Measure, print; CheckpointError for a model that cannot be had."""
    torch.set_num_threads(given.threads)
    drafter = _drafter(given)
    torch.set_num_threads(given.threads)  # loading has its own opinion
    config = drafter.config
    loads = list(_loads(given, config.window, config.num_spec))
    bytes_per_s = bandwidth()
    clock = clock_of(drafter.device, given.threads)
    course = Course(drafter, clock, max_slots=MAX_REQUESTS)
    try:
        results = [_measured(course, load, given.rounds, bytes_per_s) for load in loads]
        rss = _watched(course, loads[0], given.rss_rounds) if given.rss_rounds else None
    finally:
        course.close()
    about = {
        "model": given.synthetic if given.checkpoint is None else str(given.checkpoint),
        "backend": drafter.backend,
        "device": drafter.device,
        "dtype": drafter.dtype,
        "kv_quant": drafter.kv_quant,
        "threads": given.threads,
        "clock": "thread time" if given.threads == 1 and drafter.device == "cpu" else "elapsed",
        "bandwidth_bytes_per_s": round(bytes_per_s),
    }
    if given.json:
        _print(json.dumps(report.as_json(results, about, rss)))
    else:
        _print(", ".join(f"{key} {value}" for key, value in about.items()))
        tables = [report.growth_table(results)] if given.growth else map(report.table, results)
        _print("\n\n".join(tables))
        if rss is not None:
            _print(
                f"resident memory over {given.rss_rounds} rounds: {rss.bytes_per_round:+.2f} bytes"
                f" a round ({rss.first_bytes >> 10} KiB to {rss.last_bytes >> 10} KiB)"
            )


def _drafter(given: argparse.Namespace) -> TorchDrafter:
    how = {"device": given.device, "dtype": given.dtype, "max_slots": MAX_REQUESTS}
    if given.checkpoint is not None:
        return load_drafter(given.checkpoint, kv_quant=given.kv_quant, **how)
    if given.device != "cpu" and not torch.cuda.is_available():
        raise CheckpointError(f"device {given.device}: torch sees no CUDA device here")
    return make_up(SHAPES[given.synthetic], kv_quant_name=given.kv_quant, **how)


def _loads(given: argparse.Namespace, window: int, num_spec: int) -> Iterator[Load]:
    n_out, rows = given.n_out, given.rows
    if given.append and n_out:
        raise UsageError("--append: not with --n-out; a prefill asks for no drafts")
    for flag, asked, most in (("--n-out", n_out, num_spec), ("--rows", rows, window)):
        if asked > most:
            raise UsageError(f"{flag}: {asked}: this model has {most} at most")
    if not given.growth:
        yield Load(given.requests, rows, n_out, not given.append)
        return
    for n_requests in range(1, MAX_REQUESTS + 1):
        yield Load(n_requests, rows, n_out)
    n_rows = 1
    while n_rows <= window:
        yield Load(1, n_rows, n_out)
        n_rows *= 2
    yield Load(1, window, 0, False)
    for some in range(1, num_spec + 1):
        yield Load(1, rows, some)


def _measured(course: Course, load: Load, n_rounds: int, bytes_per_s: float) -> report.Result:
    course.fill()
    products = course.note(load)
    course.run(load, _WARM_UP, products)
    samples = course.run(load, n_rounds, products)
    return report.result(
        load,
        samples,
        n_products=len(products),
        n_flops=products.n_flops,
        n_bytes=products.n_bytes,
        bytes_per_s=bytes_per_s,
    )


def _watched(course: Course, load: Load, n_rounds: int) -> memory.Growth:
    """The process's memory over many rounds, the first tenth of them not counted."""
    step = max(1, n_rounds // _RSS_POINTS)
    seen: list[tuple[int, int]] = []
    for done in range(step, n_rounds + 1, step):
        course.run(load, step)
        if 10 * done >= n_rounds:
            seen.append((done, memory.rss_bytes()))
    return memory.growth(seen)


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
