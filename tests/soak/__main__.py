"""Worker and engine under faults, outputs checked, memory watched.

    python -m tests.soak [--minutes 10] [--seed 1]

A real worker, a relay, and the demo's engine with the real client. Every few seconds something
happens by the seed: the worker is killed and started again, stopped for a while, every connection
is reset, the link stalls or is thin. At the end every output must be what the target says by
itself, and of each process that lived for half a minute memory, descriptors and threads must be
flat. Prints one JSON line; exit code 1 when anything was wrong.
"""

import argparse
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.soak.proxy import Proxy

CHECKPOINT = Path(__file__).parents[2] / "dsparkctl" / "demo" / "checkpoint"
LOOK_EVERY_S = 1.0
SETTLED_S = 15.0
"""A process younger than this still warms up."""
MIN_SAMPLES = 15
MAX_GROWTH_BYTES = 24 << 20
MAX_EXTRA = 3
"""Descriptors and threads: a connection that is being replaced counts twice for a moment."""


class Sample(NamedTuple):
    """One process at one moment."""

    age_s: float
    rss_bytes: int
    n_descriptors: int
    n_threads: int


class Life:
    """A process and what was seen of it."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self.name = name
        self.process = process
        self.samples: list[Sample] = []
        self._began_s = time.monotonic()

    def look(self) -> None:
        proc = Path("/proc") / str(self.process.pid)
        try:
            pages = int((proc / "statm").read_text().split()[1])
            n_threads = len([*(proc / "task").iterdir()])
            n_descriptors = len([*(proc / "fd").iterdir()])
        except OSError:
            return
        age_s = time.monotonic() - self._began_s
        rss = pages * os.sysconf("SC_PAGE_SIZE")
        self.samples.append(Sample(age_s, rss, n_descriptors, n_threads))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def growth(self) -> list[str]:
        """What grew between the first and the last third of its settled life."""
        settled = [one for one in self.samples if one.age_s > SETTLED_S]
        if len(settled) < MIN_SAMPLES:
            return []
        third = len(settled) // 3
        found = []
        for field, most in (("rss_bytes", MAX_GROWTH_BYTES), ("n_descriptors", MAX_EXTRA),
                            ("n_threads", MAX_EXTRA)):  # fmt: skip
            early = statistics.median(getattr(one, field) for one in settled[:third])
            late = statistics.median(getattr(one, field) for one in settled[-third:])
            if late - early > most:
                found.append(f"{self.name}: {field} from {early:g} to {late:g}")
        return found


class Soak:
    """The two sides, and what is done to them."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.lives: list[Life] = []
        self.faults: dict[str, int] = {}
        self._port = free_port()
        self.proxy = Proxy(self._port)
        self.worker = self._start_worker()

    def _start_worker(self) -> Life:
        receipt = CHECKPOINT / "DSPARK_COPY_DONE"
        argv = [sys.executable, "-P", "-m", "dspark_worker", "serve", "--checkpoint",
                str(CHECKPOINT), "--receipt", str(receipt), "--listen",
                f"tcp://127.0.0.1:{self._port}", "--admin", "tcp://127.0.0.1:0"]  # fmt: skip
        process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline(), "the worker did not start"
        life = Life("worker", process)
        self.lives.append(life)
        return life

    def start_engine(self, seconds: float, seed: int) -> Life:
        argv = [sys.executable, "-c", "from dsparkctl.cli.app import main; main()", "demo",
                "--endpoint", f"tcp://127.0.0.1:{self.proxy.port}", "--requests", "10000",
                "--max-seconds", str(seconds), "--timeout-ms", "400", "--seed", str(seed),
                "--step-ms", "5", "--json"]  # fmt: skip
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        life = Life("engine", process)
        self.lives.append(life)
        return life

    # --- what happens to it -----------------------------------------------------------------------

    def kill(self) -> None:
        self.worker.end()
        time.sleep(self.dice.uniform(0, 1.5))
        self.worker = self._start_worker()

    def stop(self) -> None:
        self.worker.process.send_signal(signal.SIGSTOP)
        time.sleep(self.dice.uniform(0.05, 1.5))
        self.worker.process.send_signal(signal.SIGCONT)

    def reset(self) -> None:
        for _ in range(self.dice.randint(1, 3)):
            self.proxy.reset()
            time.sleep(self.dice.uniform(0, 0.3))

    def stall(self) -> None:
        self.proxy.stall(self.dice.uniform(0.05, 1.5))

    def thin(self) -> None:
        self.proxy.slow(self.dice.uniform(0.5, 3.0), 10 ** self.dice.uniform(4.5, 7))

    def happen(self) -> None:
        deeds: list[tuple[Callable[[], None], int]] = [
            (self.kill, 1), (self.stop, 3), (self.reset, 4), (self.stall, 3), (self.thin, 3),
        ]  # fmt: skip
        (deed,) = self.dice.choices([one for one, _ in deeds], [weight for _, weight in deeds])
        self.faults[deed.__name__] = self.faults.get(deed.__name__, 0) + 1
        deed()

    def close(self) -> None:
        self.proxy.close()
        for life in self.lives:
            life.end()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def soak(seconds: float, seed: int) -> dict[str, Any]:
    """What came of it; `wrong` is empty when all was well."""
    course = Soak(seed)
    wrong: list[str] = []
    try:
        engine = course.start_engine(seconds, seed)
        end_s = time.monotonic() + seconds
        next_fault_s = time.monotonic() + 3
        while time.monotonic() < end_s and engine.process.poll() is None:
            for life in (course.worker, engine):
                life.look()
            if time.monotonic() > next_fault_s:
                course.happen()
                next_fault_s = time.monotonic() + course.dice.uniform(0.5, 5)
            time.sleep(LOOK_EVERY_S)
        # What the target says by itself is computed now, without anything to hurry it.
        out, err = engine.process.communicate(timeout=600 + 4 * seconds)
        told = json.loads(out) if out else {}
        if engine.process.returncode or not told.get("outputs_match_reference"):
            wrong.append(f"engine: exit code {engine.process.returncode}: {err.strip()[-300:]}")
        if not told.get("steps_sent") or not told.get("accepted"):
            wrong.append("nothing was drafted at all")
        if course.worker.process.poll() is not None:
            wrong.append(f"worker: ended with {course.worker.process.returncode}")
        for life in course.lives:
            wrong += life.growth()
    finally:
        course.close()
    kept = ("rounds", "steps_sent", "drafted_requests", "accepted", "connections", "resyncs",
            "requests_done", "fallbacks")  # fmt: skip
    return {
        "seed": seed,
        "seconds": seconds,
        "faults": course.faults,
        "engine": {key: told.get(key) for key in kept},
        "processes": len(course.lives),
        "judged": sum(len(life.samples) >= MIN_SAMPLES + SETTLED_S for life in course.lives),
        "wrong": wrong,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    found = soak(given.minutes * 60, given.seed)
    print(json.dumps(found))  # noqa: T201
    return int(bool(found["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
