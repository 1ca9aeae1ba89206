"""What the flight recorder costs a round: `python benchmarks/recorder.py`.

Thread time of one STEP and its reply being handed to a recorder, best of many, in µs: heads alone,
and with the rows of one decode request (184 KB) and of four (614 KB). The thread that writes runs
beside it, on this process's other core.
"""

import tempfile
import time
from pathlib import Path

from dsparkctl.contract.codes import Op
from dsparkctl.contract.messages import frame
from dsparkctl.net.flight.recorder import Recorder

HEAD = frame(Op.STEP, 2, 1, bytes(96))
REPLY = frame(Op.STEP, 2, 1, bytes(80))
ROW_BYTES = 30_720


def cost_us(with_rows: bool, n_rows: int) -> float:
    rows = bytearray(n_rows * ROW_BYTES)
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder), max_bytes=1 << 26, with_rows=with_rows)
        best = float("inf")
        for _ in range(60):
            start = time.thread_time_ns()
            for _ in range(10):
                recorder.sent([HEAD, rows])
                recorder.received(REPLY)
            best = min(best, (time.thread_time_ns() - start) / 10 / 1e3)
            time.sleep(0.02)
        recorder.close()
    return best


def main() -> None:
    for with_rows, n_rows in ((False, 6), (True, 6), (True, 20)):
        what = f"rows, {n_rows * ROW_BYTES / 1e3:.0f} KB" if with_rows else "heads alone"
        print(f"{what}: {cost_us(with_rows, n_rows):.1f} us a round")


if __name__ == "__main__":
    main()
