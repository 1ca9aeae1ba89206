"""From a folder to a drafter: the one place that assembles the model.

Every reason why a checkpoint cannot be served leaves as a `CheckpointError`: one line that names
file and tensor (or the device, or the format).
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from dspark_worker.model import kv_quant as kv_quants
from dspark_worker.model.block import load_block
from dspark_worker.model.context_kv import context_kv
from dspark_worker.model.drafter import Model, TorchDrafter
from dspark_worker.model.exl3.cache import DecodedCache
from dspark_worker.model.exl3.kernels import choose_kernels
from dspark_worker.model.heads import load_heads
from dspark_worker.model.rope import make_rope
from dspark_worker.model.weights import Weights, open_weights
from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.checkpoint.files import CheckpointFiles, find_files
from dsparkctl.checkpoint.model_config import ModelConfig, read_model_config
from dsparkctl.config.defaults import WEIGHT_CACHE_MB

SMALL_BYTES = 64 << 20

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_drafter(
    directory: Path,
    *,
    device: str,
    dtype: str,
    kv_quant: str,
    max_slots: int,
    markov_tokens: Sequence[int] = (),
    markov_bytes: int = 0,
    weight_cache_mb: int = WEIGHT_CACHE_MB,
    backend: str = "auto",
) -> TorchDrafter:
    """Load the checkpoint in `directory`, complete or not at all; `CheckpointError` says why not.

    `device` is `cpu`, `cuda` or `cuda:N`; `dtype` float32 or bfloat16; `kv_quant` auto, none,
    mxfp8_32 or v4_record_64. The Markov bias of `markov_tokens` is kept, in `markov_bytes` at most.
    Decoded EXL3 matrices take at most `weight_cache_mb` MiB; `backend` (auto, torch, exllamav3)
    says who multiplies with them.
    """
    where = _device(device)
    if dtype not in DTYPES:
        raise CheckpointError(f"dtype {dtype!r} is not served; use {' or '.join(DTYPES)}")
    if max_slots < 1:
        raise CheckpointError(f"max-slots {max_slots}: at least one slot is needed")
    files = find_files(directory)
    config = read_model_config(files)
    kind = kv_quants.choose(kv_quant, config.head_dim, config.rope_dim)
    _choose_threads(files)
    exact = torch.float32 if where.type == "cpu" else torch.float16
    cache = DecodedCache(weight_cache_mb << 20, exact, where)
    with open_weights(files, config, where, DTYPES[dtype], cache) as weights:
        model = assemble(weights, config, kind, markov_tokens, markov_bytes)
        weights.finish()
        linears = weights.exl3.linears
    chosen = choose_kernels(backend, linears, where)
    try:
        for linear in linears.values():
            linear.pin()
    except (MemoryError, RuntimeError):
        raise CheckpointError(
            f"decoded EXL3 weights do not fit on {where}; lower --weight-cache-mb"
        ) from None
    try:
        return TorchDrafter(
            model,
            config,
            device=where,
            dtype=DTYPES[dtype],
            kv_quant=kind,
            max_slots=max_slots,
            backend=chosen,
            weight_cache=cache if linears else None,
        )
    except (MemoryError, RuntimeError):
        raise CheckpointError(f"the windows of {max_slots} slots do not fit on {where}") from None


def assemble(
    weights: Weights,
    config: ModelConfig,
    kind: kv_quants.KvQuant,
    markov_tokens: Sequence[int] = (),
    markov_bytes: int = 0,
) -> Model:
    """Take every tensor and put the model together."""
    embed = weights.matrix("embed.weight")
    main_proj, main_norm = weights.linear("mtp.0.main_proj"), weights.norm("mtp.0.main_norm")
    blocks = tuple(load_block(weights, s, config, kind) for s in range(config.n_layers))
    return Model(
        embed=embed,
        main_proj=main_proj,
        main_norm=main_norm,
        blocks=blocks,
        context_kv=context_kv([block.attention for block in blocks]),
        heads=load_heads(weights, config, markov_tokens, markov_bytes),
        rope=make_rope(config.rope_dim, config.rope_theta, weights.device),
    )


def _choose_threads(files: CheckpointFiles) -> None:
    """One thread for a model so small that several would only wait for each other at every step.

    On a busy machine that wait is a scheduler's quantum, a thousand times the work itself.
    """
    if sum(path.stat().st_size for path in files.shards) < SMALL_BYTES:
        torch.set_num_threads(1)


def _device(name: str) -> torch.device:
    kind, _, number = name.partition(":")
    if name == "cpu":
        return torch.device("cpu")
    if kind != "cuda" or not (number.isdecimal() or name == "cuda"):
        raise CheckpointError(f"device {name!r} is not known; use cpu or cuda:N")
    n_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = int(number or 0)
    if index >= n_devices:
        raise CheckpointError(f"device {name}: torch sees {n_devices} CUDA devices here")
    return torch.device("cuda", index)
