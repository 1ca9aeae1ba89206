"""Starts one life of an engine in a process of its own, in the rig's environment.

Decides the environment and the prompts. Refuses to import vllm or torch: pytest runs here.
"""

import json
import os
import random
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
PYTHON: Final = os.environ.get("DSPARK_RIG_PYTHON", sys.executable)
TIMEOUT_S: Final = 900
"""A life takes a minute on two idle cores."""

_ENVIRONMENT: Final = {
    "PYTHONPATH": f"{HERE / 'shim'}:{ROOT}",
    "TRITON_INTERPRET": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the scheduler steps when we say so
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
}


class EngineDied(Exception):  # noqa: N818 -- what happened
    """The engine's process ended otherwise than well; the end of what it said."""


def live(plan: dict[str, Any], folder: Path, name: str, **env: str) -> dict[str, Any]:
    """One life of an engine by `plan` (`engine_run.Plan`); what it wrote down."""
    plan_file, out_file = folder / f"{name}.plan.json", folder / f"{name}.out.json"
    plan_file.write_text(json.dumps(plan), encoding="utf-8")
    files = str(plan_file), str(out_file)
    ports = map(str, free_ports(2))
    command = [PYTHON, "-m", "tests.vllm.engine_run", *files, *ports]
    with (folder / f"{name}.log").open("wb") as log:
        ended = subprocess.run(
            command,
            env={**os.environ, **_ENVIRONMENT, **env},
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
            check=False,
        )
    if ended.returncode or not out_file.exists():
        lines = (folder / f"{name}.log").read_text(errors="replace").splitlines()
        raise EngineDied("\n".join([f"exit status {ended.returncode}", *lines[-40:]]))
    found: dict[str, Any] = json.loads(out_file.read_text(encoding="utf-8"))
    return found


def free_ports(n: int) -> list[int]:
    """Ports that were free a moment ago; the worker comes back on the same ones."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


def candidates(n: int) -> list[list[int]]:
    """Prompts of many lengths, each third of which goes on where the one before it ends."""
    draw = random.Random(3)
    lengths = (9, 40, 230, 150, 33, 200, 64, 90, 210)
    found: list[list[int]] = []
    for i in range(n):
        prompt = [draw.randrange(2, 500) for _ in range(lengths[i % len(lengths)])]
        if i % 3 == 0 and i:
            prompt = found[i - 1] + prompt[:15]
        found.append(prompt)
    return found
