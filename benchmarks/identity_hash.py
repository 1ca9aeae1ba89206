"""How fast identities are hashed, against `sha256sum` over the same files at the same parallelism.

    python benchmarks/identity_hash.py [--files 8] [--mib 64] [--threads N] [--rounds 7]

Prints one JSON line: the median seconds of both, and the median of the rounds' ratios (ours over
sha256sum's). Rounds are interleaved, so that a machine that slows down slows both. Target: 1.1.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from dsparkctl.checkpoint.digest import default_threads, digest_files


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def peer(paths: list[Path], n_threads: int) -> None:
    """One `sha256sum` a file, `n_threads` at a time."""
    names = b"\0".join(os.fsencode(path) for path in paths)
    command = ["xargs", "-0", "-n1", f"-P{n_threads}", "sha256sum", "--binary"]
    subprocess.run(command, input=names, stdout=subprocess.DEVNULL, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--root", type=Path, help="where to put the files; default: a temp folder")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.root) as folder:
        paths = [Path(folder) / f"shard{i}.safetensors" for i in range(args.files)]
        block = os.urandom(1 << 20)
        for path in paths:
            path.write_bytes(block * args.mib)
        ours, peers = [], []
        for _ in range(args.rounds):
            peers.append(seconds(lambda: peer(paths, args.threads)))
            ours.append(seconds(lambda: digest_files(paths, n_threads=args.threads)))
    result = {
        "files": args.files,
        "mib": args.mib,
        "threads": args.threads,
        "ours_s": round(statistics.median(ours), 4),
        "sha256sum_s": round(statistics.median(peers), 4),
        "ratio": round(statistics.median(a / b for a, b in zip(ours, peers, strict=True)), 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
