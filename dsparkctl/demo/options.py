"""What the demo is asked to do, as checked values.

Decides what cannot be meant; the message is one line and names the option.
"""

import math
from pathlib import Path
from typing import Final, NamedTuple

from dsparkctl.client.environment import Policy
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.net.dial import require_usable

MAX_MODEL_LEN: Final = 2048
"""Positions of a request, prompt included."""
MAX_CONCURRENCY: Final = 4
"""The HELLO's max_slots."""
MAX_TOKENS: Final = 1024
"""With the longest prompt and a block of drafts it stays below `MAX_MODEL_LEN`."""
MAX_REQUESTS: Final = 10_000

N_REQUESTS: Final = 8
N_TOKENS: Final = 128
TIMEOUT_MS: Final = 2000.0
"""The contract's 50 ms (§10) are for a GPU that does nothing else; a busy laptop takes longer."""

OUTAGE_N_REQUESTS: Final = 32
OUTAGE_STEP_MS: Final = 25.0
"""Enough rounds, and slow enough, for a worker to come back while they last."""


class OptionError(Exception):
    """Options that cannot be meant; one line."""


class EngineEnded(Exception):  # noqa: N818 -- what happened
    """`VLLM_DSPARK_REMOTE_ON_FAIL=raise`, and a round failed (§10); one line."""


class Options(NamedTuple):
    """None stands for what follows from the others."""

    endpoint: Endpoint | None
    checkpoint: Path
    n_requests: int | None = None
    n_tokens: int = N_TOKENS
    concurrency: int = MAX_CONCURRENCY
    seed: int = 1
    policy: Policy = Policy.CAPACITY
    timeout_ms: float = TIMEOUT_MS
    step_ms: float | None = None
    max_seconds: float | None = None
    shows_outage: bool = False
    transport: str = "tcp"
    """Scheme of the demo's own worker (§5)."""

    @property
    def requests(self) -> int:
        return self.n_requests or (OUTAGE_N_REQUESTS if self.shows_outage else N_REQUESTS)

    @property
    def step_s(self) -> float:
        """What a round takes at least."""
        paced = OUTAGE_STEP_MS if self.shows_outage else 0.0
        return (paced if self.step_ms is None else self.step_ms) / 1e3


def require_sense(options: Options) -> None:
    """OptionError, or NotInThisBuild, when the options cannot be meant."""
    numbers = {
        "--timeout-ms": options.timeout_ms,
        "--step-ms": options.step_ms,
        "--max-seconds": options.max_seconds,
    }
    for name, value in numbers.items():
        if value is not None and not math.isfinite(value):
            raise OptionError(f"{name}: expected a number, got {value}")
    if options.endpoint is None:
        require_usable(Endpoint(options.transport, "127.0.0.1", 0))
        return
    if options.transport not in ("tcp", options.endpoint.scheme):
        raise OptionError("--transport: not with --endpoint, which says it itself")
    require_usable(options.endpoint)
    if options.endpoint.is_wildcard or not options.endpoint.port:
        raise OptionError(f"--endpoint: expected a worker's host and port, got {options.endpoint}")
    if options.shows_outage:
        raise OptionError("--show-outage: not with --endpoint; it kills the demo's own worker")
