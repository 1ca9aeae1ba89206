"""One measurement over a direct link: both ends run the same program at once, and are believed
within bounds.

Decides which sizes are sent: those of real STEPs (§8.1). What a time means is `checks.between`'s.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from pydantic import ValidationError

from dsparkctl.contract.framing import HEADER_BYTES
from dsparkctl.contract.messages import rows_offset
from dsparkctl.rollout.doctor.observations import Transfer
from dsparkctl.rollout.doctor.part import End
from dsparkctl.rollout.host import Host, HostError
from dsparkctl.rollout.parcel import PYTHON, parcel

ROW_BYTES: Final = 30_720
"""TAPS_BF16 (§8.1)."""

LONGEST_S: Final = 30.0


def step_bytes(n_req: int, n_rows: int) -> int:
    """A whole STEP of so many requests and rows."""
    return HEADER_BYTES + rows_offset(n_req) + n_rows * ROW_BYTES


SIZES: Final = ((step_bytes(1, 6), 20), (step_bytes(4, 20), 20), (step_bytes(1, 128), 8))
"""Bytes and how often: one request's decode, four requests', a prefill's window; 48 MB in all."""


def measure_link(sender: Host, receiver: Host, end: End, port: int) -> Transfer:
    """From the Spark (`end` is its end) to `port` of the worker's host; never an exception."""
    asked = {"own": end.own, "peer": end.peer, "port": port, "sizes": SIZES}
    try:
        with ThreadPoolExecutor(1) as pool:
            receiving = pool.submit(_run, receiver, {**asked, "act": "receive"})
            sent = _run(sender, {**asked, "act": "send"})
            receiving.result()
        return Transfer.model_validate_json(sent)
    except (HostError, ValidationError) as error:
        return Transfer(rtt_us=(), rounds=(), error=str(error).splitlines()[0][:300])


def _run(host: Host, asked: dict[str, Any]) -> bytes:
    program = parcel(f"{__package__}.transfer_program", oldest=(3, 9))
    ran = host.run((*PYTHON, json.dumps(asked)), stdin=program, timeout_s=LONGEST_S)
    return ran.stdout.rstrip().rpartition(b"\n")[2]
