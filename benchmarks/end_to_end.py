"""What drafts are worth to an engine: `python benchmarks/end_to_end.py [--rounds 3]`.

The demo's engine with a verify step as long as the real one's: tokens per second with a worker's
drafts, without one (nobody listens), and while a worker is killed and started again; acceptance by
position, and the parts of a round. Runs are interleaved, medians shown.
"""

import argparse
import json
import statistics
import subprocess
import sys
from typing import Any

PROGRAM = [sys.executable, "-c", "from dsparkctl.cli.app import main; main()", "demo", "--json"]
RUNS = {
    "with drafts": [],
    "nobody drafts": ["--endpoint", "tcp://127.0.0.1:1"],
    "worker killed on the way": ["--show-outage"],
}


def run(flags: list[str], step_ms: float) -> dict[str, Any]:
    argv = [*PROGRAM, *flags, "--requests", "16", "--step-ms", f"{step_ms:g}"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step-ms", type=float, default=33.0)
    given = parser.parse_args()
    told: dict[str, list[dict[str, Any]]] = {name: [] for name in RUNS}
    for _ in range(given.rounds):
        for name, flags in RUNS.items():
            told[name].append(run(flags, given.step_ms))
    for name, runs in told.items():
        speed = statistics.median(one["tokens"] / seconds(one) for one in runs)
        steps = statistics.median(one["tokens_per_step"] for one in runs)
        print(f"{name}: {speed:.0f} tokens/s, {steps:.2f} tokens a target step")
    best = told["with drafts"][0]
    print("acceptance by position:", " ".join(f"{a:.2f}" for a in best["acceptance_per_position"]))
    for part, times in best["ms_per_round"].items():
        print(f"  {part}: p50 {times['p50']:.2f} ms, p99 {times['p99']:.2f} ms")


def seconds(one: dict[str, Any]) -> float:
    """The rounds' time, by their median: the reference that follows them does not count."""
    return float(one["rounds"] * one["ms_per_round"]["round"]["p50"] / 1e3)


if __name__ == "__main__":
    main()
