"""Which drafter serves, by the settings: the model in torch, or the scripted one.

The only room that reaches for torch on the worker's way up, and only when it is asked for: the
scripted worker must start on a machine without it.
"""

from collections.abc import Callable
from typing import NamedTuple

from dspark_worker.drafter import Drafter
from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.checkpoint.model_config import ModelConfig
from dsparkctl.config.fleet import WorkerSettings


class Chosen(NamedTuple):
    """A drafter that is ready, and what STATS says of it."""

    drafter: Drafter
    device: str
    dtype: str
    kv_quant: str
    gpu_mem_bytes: Callable[[], int]
    weight_cache: Callable[[], dict[str, int] | None] = lambda: None
    """Of decoded EXL3 weights; None where there are none."""


def choose_drafter(settings: WorkerSettings, config: ModelConfig) -> Chosen:
    """Load what the settings ask for; CheckpointError, one line, when that cannot be had."""
    if settings.drafter == "scripted":
        return _scripted(settings, config)
    try:
        from dspark_worker.model.load import load_drafter
    except ImportError as error:
        raise CheckpointError(
            f"the torch drafter needs {error.name}: pip install 'dsparkctl[worker]'"
        ) from error
    drafter = load_drafter(
        settings.checkpoint,
        device=settings.device,
        dtype=settings.dtype or ("float32" if settings.device == "cpu" else "bfloat16"),
        kv_quant=settings.kv_quant,
        max_slots=settings.max_slots,
        weight_cache_mb=settings.weight_cache_mb,
        backend=settings.backend,
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
