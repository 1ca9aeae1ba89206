"""The picture of `stats --watch` in the guides: `python -m tests.house.screenshot`.

A real worker, the demo's engine in the middle of its work, and the table that a terminal shows,
drawn by rich into an SVG.
"""

import io
import subprocess
import sys
import time

from rich.console import Console

from dsparkctl.cli.alarms import alarms
from dsparkctl.cli.live import drawn
from dsparkctl.cli.trend import Reading, parse_stats, table_rows
from dsparkctl.contract.codes import Op
from dsparkctl.net.dial import dial
from dsparkctl.net.ping import request
from dsparkctl.net.transport import Deadline
from tests.e2e.running import Worker, running_worker
from tests.house.tree import ROOT

CHECKPOINT = ROOT / "dsparkctl" / "demo" / "checkpoint"
PICTURE = ROOT / "docs" / "pictures" / "stats-watch.svg"


def reading(worker: Worker) -> Reading:
    link = dial(worker.admin, Deadline(5.0))
    try:
        return Reading(parse_stats(request(link, Op.STATS, b"", 5.0)), time.monotonic())
    finally:
        link.close()


def main() -> None:
    receipt = str(CHECKPOINT / "DSPARK_COPY_DONE")
    with running_worker("--receipt", receipt, checkpoint=CHECKPOINT) as worker:
        program = [sys.executable, "-c", "from dsparkctl.cli.app import main; main()", "demo"]
        flags = ["--endpoint", str(worker.data), "--requests", "500", "--step-ms", "33"]
        engine = subprocess.Popen(
            [*program, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            time.sleep(12)
            before = reading(worker)
            time.sleep(2)
            now = reading(worker)
        finally:
            engine.kill()
            engine.wait()
    said = "\n".join(f"ALARM {alarm}" for alarm in alarms([before, now]))
    console = Console(record=True, width=76, file=io.StringIO())
    console.print(drawn("tcp://127.0.0.1:18630", table_rows(before, now), said))
    PICTURE.parent.mkdir(exist_ok=True)
    console.save_svg(str(PICTURE), title="dsparkctl stats --watch")


if __name__ == "__main__":
    main()
