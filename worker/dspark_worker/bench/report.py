"""What a course came to: percentiles, the floor beside them, as a table or as JSON."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dspark_worker.bench.course import PARTS, Load, Sample
from dspark_worker.memory import Growth
from dspark_worker.stats import percentile


class Times(NamedTuple):
    """µs"""

    p50: float
    p99: float


class Result(NamedTuple):
    """One load on one model."""

    load: Load
    n_rounds: int
    parts: Mapping[str, Times]
    whole: Times
    products: Times
    ratio: float
    """whole round over its matrix products alone, medians of the same run"""
    n_products: int
    gflop: float
    n_bytes: int
    bytes_us: float
    """the bytes of a round over the memory's bandwidth"""


def result(
    load: Load,
    samples: Sequence[Sample],
    *,
    n_products: int,
    n_flops: int,
    n_bytes: int,
    bytes_per_s: float,
) -> Result:
    whole = _times(sample.whole for sample in samples)
    floor = _times(sample.floor for sample in samples)
    return Result(
        load=load,
        n_rounds=len(samples),
        parts={part: _times(sample.parts[part] for sample in samples) for part in PARTS},
        whole=whole,
        products=floor,
        ratio=whole.p50 / floor.p50,
        n_products=n_products,
        gflop=n_flops / 1e9,
        n_bytes=n_bytes,
        bytes_us=n_bytes / bytes_per_s * 1e6,
    )


def _times(seconds: Iterable[float]) -> Times:
    ordered = sorted(value * 1e6 for value in seconds)
    return Times(percentile(ordered, 50), percentile(ordered, 99))


def as_json(results: Sequence[Result], about: Mapping[str, Any], rss: Growth | None) -> Any:
    """One object; times in µs, rounded to a tenth."""
    rounds = [
        {
            "requests": one.load.n_requests,
            "rows": one.load.n_rows,
            "n_out": one.load.n_out,
            "drafting": one.load.drafting,
            "rounds": one.n_rounds,
            "parts": {part: _json_times(times) for part, times in one.parts.items()},
            "whole": _json_times(one.whole),
            "floor": {
                "matmuls": _json_times(one.products),
                "n_matmuls": one.n_products,
                "gflop": round(one.gflop, 4),
                "bytes": one.n_bytes,
                "bytes_us": round(one.bytes_us, 1),
            },
            "ratio": round(one.ratio, 4),
        }
        for one in results
    ]
    return {**about, "results": rounds} | ({} if rss is None else {"rss": rss._asdict()})


def _json_times(times: Times) -> dict[str, float]:
    return {"p50_us": round(times.p50, 1), "p99_us": round(times.p99, 1)}


def table(one: Result) -> str:
    """Part by part."""
    load = one.load
    what = f"{load.n_requests} request(s), {load.n_rows} new rows each"
    what += f", n_out {load.n_out or 'N'}" if load.drafting else ", append only"
    rows = [("part", "p50 µs", "p99 µs", "share")]
    for part, times in one.parts.items():
        share = f"{100 * times.p50 / one.whole.p50:.1f} %"
        rows.append((part, f"{times.p50:.0f}", f"{times.p99:.0f}", share))
    for name, times in (("whole round", one.whole), ("matmuls alone", one.products)):
        rows.append((name, f"{times.p50:.0f}", f"{times.p99:.0f}", ""))
    rows.append(("bytes over bandwidth", f"{one.bytes_us:.0f}", "", ""))
    return (
        f"{what}; {one.n_rounds} rounds\n{_aligned(rows)}\n"
        f"whole round / matmuls alone: {one.ratio:.3f}"
        f" ({one.n_products} matmuls, {one.gflop:.2f} GFLOP, {one.n_bytes / 1e6:.0f} MB)"
    )


def growth_table(results: Sequence[Result]) -> str:
    """One line a load."""
    rows = [("requests", "rows", "n_out", "p50 µs", "p99 µs", "matmuls µs", "ratio")]
    rows += [
        (
            str(one.load.n_requests),
            str(one.load.n_rows),
            str(one.load.n_out or "N") if one.load.drafting else "append",
            f"{one.whole.p50:.0f}",
            f"{one.whole.p99:.0f}",
            f"{one.products.p50:.0f}",
            f"{one.ratio:.3f}",
        )
        for one in results
    ]
    return _aligned(rows)


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if n == 0 else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
