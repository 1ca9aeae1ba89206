"""The defaults that more than one place must agree on: `dspark.yaml`, the worker's flags, and what
`config hello` prints (§6.2, §5)."""

from pathlib import Path
from typing import Final

from dsparkctl.contract.endpoint import ADMIN_PORT, DATA_PORT, Endpoint

CONFIG: Final = Path("dspark.yaml")
"""Where a command looks when it is told no other file."""

MAX_SLOTS: Final = 4
SLOTS_LIMIT: Final = 32
"""RESET's mask has a bit a slot (§6.4)."""

MAX_MODEL_LEN: Final = 327_680
"""Tokens; positions are clamped below it (§7.2.5)."""
TP_SIZE: Final = 2

WEIGHT_CACHE_MB: Final = 6144
"""MiB of decoded EXL3 weights: the live dense layers and head as fp32, and a few experts."""

LISTEN: Final = Endpoint("tcp", "127.0.0.1", DATA_PORT)
ADMIN: Final = Endpoint("tcp", "127.0.0.1", ADMIN_PORT)


def max_rows_per_step(max_slots: int, window: int) -> int:
    """Every slot's whole window in one STEP (§6.2)."""
    return max_slots * window
