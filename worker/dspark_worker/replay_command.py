"""`worker replay CASE_DIR --mode …`: a golden case through desk and model, compared (spec §11).

Decides how the comparison reads and when it fails: exit 1 when a tolerance is broken.
"""

import argparse
import json
import os
import stat
import sys
from pathlib import Path

from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.config.errors import WriteError
from dsparkctl.config.files import write_whole
from dsparkctl.exits import Exit

MODES = ("f32", "f32_kvq", "bf16", "bf16_kvq")


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("case", type=Path, metavar="CASE_DIR", help="a golden case's folder")
    parser.add_argument("--mode", choices=MODES, required=True)
    parser.add_argument("--out", type=Path, metavar="OUT.safetensors", help="write what was seen")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:N (default: cpu)")
    parser.add_argument("--json", action="store_true", help="print the comparison as one line")


def run(given: argparse.Namespace) -> int:
    """Replay, write, compare, say."""
    try:
        from safetensors.torch import save

        from dspark_worker.replay import replay
    except ImportError as error:
        raise CheckpointError(
            f"a replay needs {error.name}: pip install 'dsparkctl[worker]'"
        ) from error
    if given.out is not None:
        _check_target(given.out)
    done = replay(given.case, given.mode, device=given.device)
    if given.out is not None:
        write_whole(
            given.out, save({key: value.contiguous() for key, value in done.outputs.items()})
        )
    if given.json:
        lines = [
            json.dumps(
                {
                    "mode": given.mode,
                    "keys": len(done.outputs),
                    "compared": bool(done.deviations),
                    "broken": [deviation.key for deviation in done.broken],
                    "worst": {d.what: str(d.worst) for d in done.deviations},
                },
                separators=(",", ":"),
            )
        ]
    elif done.deviations:
        lines = [
            f"{d.what:<28} worst {d.worst:.3g} at {d.key}"
            + ("" if d.tolerance is None else f", tolerance {d.tolerance:g}")
            + (": BROKEN" if d.broken else "")
            for d in done.deviations
        ]
    else:
        lines = [f"{len(done.outputs)} keys; the case holds no expected.safetensors to compare"]
    _say(lines)
    return Exit.FAILED if done.broken else Exit.OK


def _check_target(path: Path) -> None:
    """WriteError for what no file can be put in place of, before the replay takes its time."""
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return
    except OSError as error:
        raise WriteError(f"{path}: cannot be written: {error.strerror}") from None
    if not is_file:
        raise WriteError(f"{path}: not a regular file")


def _say(lines: list[str]) -> None:
    try:
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
    except OSError as error:
        # The interpreter would try once more while it ends, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise WriteError(f"stdout: cannot be written: {error.strerror}") from None
