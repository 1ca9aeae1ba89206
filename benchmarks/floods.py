"""How fast a STEP stays while the admin side is flooded: `python benchmarks/floods.py [--turns 8]`.

A real worker with scripted drafts at the golden model's small rows; an engine that sends a STEP
every 5 ms; and, in every second turn, processes that connect to the admin listener and go again, or
ask STATS without end. Turns are interleaved. Bars: the median within twice the quiet one, the 99th
percentile within 1 ms more. The flood runs at the lowest priority, since what is measured is the
worker and not the scheduler.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time

from dsparkctl.contract.codes import NEED_DRAFT
from dsparkctl.contract.messages import step_head
from dsparkctl.contract.records import ReqEntry
from tests.e2e.running import Client, Worker, running_worker

FLOOD = """
import contextlib, os, socket, sys
os.nice(19)
host, port, asks = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "ask"
message = bytes.fromhex(sys.argv[4])
while True:
    with contextlib.suppress(OSError), socket.create_connection((host, port), 2) as sock:
        while asks:
            sock.sendall(message)
            sock.recv(1 << 16)
"""


def flood(worker: Worker, how: str) -> list[subprocess.Popen[bytes]]:
    from dsparkctl.contract.codes import Op
    from dsparkctl.contract.framing import prefix
    from dsparkctl.contract.messages import frame

    stats = frame(Op.STATS, 1, 0)
    message = (prefix(len(stats)) + stats).hex()
    argv = [sys.executable, "-c", FLOOD, worker.admin.host, str(worker.admin.port), how, message]
    return [subprocess.Popen(argv, stderr=subprocess.DEVNULL) for _ in range(2)]


def steps(client: Client, worker: Worker, first: int, n: int) -> list[float]:
    """Seconds each of n STEPs, one every 5 ms."""
    rows, found = b"\x00\x3f" * (worker.own.row_bytes // 2), []
    for number in range(first, first + n):
        entry = ReqEntry(0, NEED_DRAFT, 0, 0, 1, number, 1, 1, number + 1)
        head = step_head(seq=number + 2, session=5, step_id=number, step_flags=0,
                         row_bytes=worker.own.row_bytes, entries=[entry])  # fmt: skip
        start = time.perf_counter()
        client.ask(head + rows)
        found.append(time.perf_counter() - start)
        time.sleep(0.005)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=8)
    given = parser.parse_args()
    with running_worker("--drafter", "scripted") as worker, Client(worker.data) as client:
        client.hello(worker.own, session=5)
        first = 0
        steps(client, worker, first, 200)
        first += 200
        for how in ("come and go", "ask"):
            times: dict[bool, list[float]] = {False: [], True: []}
            for turn in range(2 * given.turns):
                flooded = bool(turn % 2)
                processes = flood(worker, how) if flooded else []
                time.sleep(0.5)
                times[flooded] += steps(client, worker, first, 200)
                first += 200
                for process in processes:
                    os.kill(process.pid, signal.SIGKILL)
                    process.wait()
                time.sleep(0.3)
            quiet, busy = times[False], times[True]
            p50 = statistics.median(busy) / statistics.median(quiet)
            more_ms = statistics.quantiles(busy, n=100)[98] - statistics.quantiles(quiet, n=100)[98]
            print(f"{how}: p50 {p50:.2f} of quiet (bar 2), p99 {more_ms * 1e3:+.2f} ms (bar +1)")


if __name__ == "__main__":
    main()
