"""Round trips of the contract's sizes: ours beside C, pyzmq, grpcio and asyncio, in one run.

    python -m benchmarks.transport [--turns 5] [--svg FILE]

The C program is compiled on the spot (cc); pyzmq and grpcio are installed by `make bench`. Turns
are interleaved: in each one every contender has its go, and a ratio is that of two medians of the
same turn; the table shows the median of the turns' ratios. Two free cores are needed: both ends of
a spinning pair keep one busy.
"""

import argparse
import statistics
import subprocess
import tempfile
from pathlib import Path

from benchmarks.transport.contenders import (
    FABRIC,
    OTHERS,
    OURS,
    PING_BYTES,
    STEP,
    Contender,
    in_c,
    round_trips,
    started,
)
from benchmarks.transport.plot import svg
from dsparkctl.net.fabric.build import HERE as FABRIC_SOURCES

SIZES = {
    "PING": (PING_BYTES, 400),
    "184 KB": (184_416, 300),
    "614 KB": (614_592, 200),
    "3.93 MB": (3_932_256, 60),
    "15.7 MB": (15_728_864, 20),
}
"""Bytes of a request (§8.1), and round trips a turn."""

BARS = [
    ("ours, spinning", "C, spinning", {"PING": 1.25, "184 KB": 1.20, "614 KB": 1.15}),
    ("ours, blocking", "C, blocking", {"PING": 1.40, "184 KB": 1.25, "614 KB": 1.15}),
    ("a whole STEP, spinning", "C, spinning", {"184 KB": 2.0}),
    ("ours, spinning", "pyzmq REQ/REP", {"184 KB": 1 / 2.5}),
    ("ours, spinning", "grpcio unary", {"184 KB": 1 / 8}),
    ("o1tcp, spinning", "ours, spinning", {"184 KB": 2.0}),
    ("o1tcp, spinning", "C on libfabric, spinning", {"184 KB": 1.2}),
]
"""Of whom, over whom, at most."""

Medians = dict[str, dict[str, list[float]]]
"""By contender and size: the median of each turn, in s."""


def measure(contenders: list[Contender], n_turns: int) -> Medians:
    found: Medians = {one.name: {size: [] for size in SIZES} for one in contenders}
    for _ in range(n_turns):
        for size, (n_bytes, n_rounds) in SIZES.items():
            for one in contenders:
                if one is STEP and size == "PING":
                    continue
                process, port = started(one)
                try:
                    times = round_trips(one, port, n_bytes, n_rounds)
                finally:
                    process.kill()
                    process.communicate()
                found[one.name][size].append(statistics.median(times))
    return found


def compiled(folder: Path, name: str, *more: str) -> str:
    source, program = Path(__file__).with_name(f"{name}.c"), folder / name
    subprocess.run(["cc", "-O2", "-Wall", "-o", str(program), str(source), *more], check=True)
    return str(program)


def chosen(folder: Path, words: str) -> list[Contender]:
    """All contenders, or those whose name holds one of the words."""
    shim = (f"-I{FABRIC_SOURCES}", str(FABRIC_SOURCES / "shim.c"), "-lfabric")
    everybody = [
        *in_c(compiled(folder, "pingpong")), *OURS, STEP, *OTHERS, *FABRIC,
        *in_c(compiled(folder, "fabric_pingpong", *shim), "C on libfabric"),
    ]  # fmt: skip
    return [one for one in everybody if any(word in one.name for word in words.split("|"))]


def ratio(found: Medians, who: str, over: str, size: str) -> float:
    pairs = zip(found[who][size], found[over][size], strict=True)
    return statistics.median(a / b for a, b in pairs)


def table(found: Medians) -> str:
    lines = ["| µs | " + " | ".join(SIZES) + " |", "|---|" + "---|" * len(SIZES)]
    for name, sizes in found.items():
        cells = [f"{min(times) * 1e6:.0f}" if times else "" for times in sizes.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "| ratio | " + " | ".join(SIZES) + " |", "|---|" + "---|" * len(SIZES)]
    pairs = dict.fromkeys((who, over) for who, over, _ in BARS)
    for who, over in pairs:
        if who not in found or over not in found:
            continue
        cells = []
        for size in SIZES:
            if not found[who][size]:
                cells.append("")
                continue
            bar = next((b[size] for w, o, b in BARS if (w, o) == (who, over) and size in b), None)
            value = ratio(found, who, over, size)
            cells.append(f"{value:.2f}" + (f" (bar {bar:.2f})" if bar else ""))
        lines.append(f"| {who} / {over} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--only", default="", metavar="NAME|NAME", help="contenders' names")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(chosen(Path(folder), given.only), given.turns)
    print(table(found))
    if given.svg is not None:
        best = {
            name: {size: min(times) for size, times in sizes.items() if times}
            for name, sizes in found.items()
        }
        given.svg.write_text(svg(best, {size: n for size, (n, _) in SIZES.items()}))


if __name__ == "__main__":
    main()
