"""Which drafter serves, by the settings: the model in torch, or the scripted one.

The only room that reaches for torch on the worker's way up, and only when it is asked for: the
scripted worker must start on a machine without it.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

from dspark_worker.drafter import Drafter
from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.checkpoint.markov_tokens import parse_markov_tokens
from dsparkctl.checkpoint.model_config import ModelConfig
from dsparkctl.config.worker import WorkerSettings

log = logging.getLogger(__name__)


class Chosen(NamedTuple):
    """A drafter that is ready, and what STATS says of it."""

    drafter: Drafter
    device: str
    dtype: str
    kv_quant: str
    gpu_mem_bytes: Callable[[], int]
    markov_cache_rows: int = 0
    """tokens whose Markov bias is kept"""
    markov_cache_bytes: int = 0
    weight_cache: Callable[[], dict[str, int] | None] = lambda: None
    """Of decoded EXL3 weights; None where there are none."""


def choose_drafter(
    settings: WorkerSettings, config: ModelConfig, markov_data: bytes | None = None
) -> Chosen:
    """Load what the settings ask for; CheckpointError, one line, when that cannot be had.

    `markov_data` are the bytes of `settings.markov`, as their identity was computed.
    """
    if settings.drafter == "scripted":
        return _scripted(settings, config)
    try:
        from dspark_worker.model.load import load_drafter
    except ImportError as error:
        raise CheckpointError(
            f"the torch drafter needs {error.name}: pip install 'dsparkctl[worker]'"
        ) from error
    tokens: tuple[int, ...] = ()
    if settings.markov is not None and markov_data is not None and settings.markov_cache:
        tokens = parse_markov_tokens(markov_data, settings.markov, config.vocab_size)
        if not len(tokens):
            log.warning("%s holds no token: nothing is cached", settings.markov)
    drafter = load_drafter(
        settings.checkpoint,
        device=settings.device,
        dtype=settings.dtype or ("float32" if settings.device == "cpu" else "bfloat16"),
        kv_quant=settings.kv_quant,
        max_slots=settings.max_slots,
        weight_cache_mb=settings.weight_cache_mb,
        backend=settings.backend,
        markov_tokens=tokens,
        markov_bytes=settings.markov_cache_mb << 20,
    )

    def weight_cache() -> dict[str, int] | None:
        cache = drafter.weight_cache
        return None if cache is None else cache.facts()._asdict()

    return Chosen(
        drafter,
        drafter.device,
        drafter.dtype,
        drafter.kv_quant,
        drafter.gpu_mem_bytes,
        *drafter.markov_cache_size(),
        weight_cache,
    )


def _scripted(settings: WorkerSettings, config: ModelConfig) -> Chosen:
    try:
        from dspark_worker.scripted import ScriptedDrafter
    except ImportError as error:
        raise CheckpointError(
            f"the scripted drafter needs {error.name}: pip install 'dsparkctl[worker]'"
        ) from error
    drafter = ScriptedDrafter(
        num_spec=config.num_spec,
        window=config.window,
        vocab_size=config.vocab_size,
        row_bytes=config.row_bytes,
        max_slots=settings.max_slots,
    )
    return Chosen(drafter, "cpu", "none", "none", lambda: 0)
