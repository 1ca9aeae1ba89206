"""Products with EXL3 weights by exllamav3's CUDA kernels, where they are there and tell the truth.

Decides which implementation runs: `auto` takes the kernels on CUDA when the package can be imported
and passes a self-test against the portable path on the loaded tensors, and says why where it does
not; `exllamav3` insists; `torch` never asks. The package is optional and imported late: without
CUDA its import fails in ways of its own, and its first import may compile for minutes.

Everything the kernels do not check (sizes, finite scales) was checked before they are called.
"""

import importlib
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from dspark_worker.model.exl3.linear import Exl3Linear
from dspark_worker.model.exl3.packed import Packed
from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.checkpoint.exl3 import MARKERS, Codebook

log = logging.getLogger(__name__)

TOLERANCE = 2e-2
"""Relative L2: fp16 activations, and on some devices fp16 sums, cost up to 1e-2 (spec §7)."""

_N_ROWS = (1, 2, 6, 20)
"""The kernels are other ones for other numbers of rows."""

Product = Callable[[Tensor], Tensor]
"""fp32 [n, in] -> fp32 [n, out], sides as stored, without the bias."""


def choose_kernels(asked: str, linears: Mapping[str, Exl3Linear], device: torch.device) -> str:
    """Have `linears` use what `asked` (auto, torch, exllamav3) comes to; its name for STATS.

    CheckpointError, one line, when exllamav3 is insisted on and cannot be had.
    """
    if asked == "torch" or not linears or (asked == "auto" and device.type != "cuda"):
        if asked == "exllamav3":
            raise CheckpointError("backend exllamav3: the checkpoint holds no EXL3 weights")
        return "torch"
    reason = _unfit(linears, device)
    if not reason:
        return "exllamav3"
    for linear in linears.values():
        linear.product = None
    if asked == "exllamav3":
        raise CheckpointError(f"backend exllamav3: {reason}")
    log.warning("EXL3 weights are decoded by torch, which is slower: %s", reason)
    return "torch"


def _unfit(linears: Mapping[str, Exl3Linear], device: torch.device) -> str:
    """Why the kernels cannot be used, or an empty string and they are in use."""
    if device.type != "cuda":
        return f"its kernels need a CUDA device, not {device}"
    # Exact activations where the kernels would round them to 8 bits by themselves (spec §7).
    os.environ.setdefault("EXL3_INT8_GEMV", "0")
    try:
        layers = importlib.import_module("exllamav3.modules.quant.exl3")
        for name, linear in linears.items():
            linear.product = product_of(layers.LinearEXL3, name, linear.packed)
        return self_test(linears)
    except Exception as error:  # an optional package that builds itself may fail in any way
        log.debug("exllamav3 is of no use", exc_info=True)
        said = str(error).splitlines()
        return f"{type(error).__name__}: {said[0] if said else 'no reason given'}"


def product_of(linear_exl3: Any, name: str, packed: Packed) -> Product:
    """`linear_exl3` is the package's class; it holds the tensors that are loaded already."""
    markers = {
        suffix: torch.tensor(
            MARKERS[suffix] - (1 << 32), dtype=torch.int32, device=packed.trellis.device
        )
        if packed.codebook is Codebook(suffix)
        else None
        for suffix in MARKERS
    }
    layer = linear_exl3(
        None,
        packed.n_in,
        packed.n_out,
        suh=packed.suh.half(),
        svh=packed.svh.half(),
        trellis=packed.trellis.contiguous(),
        bias=None,
        out_dtype=torch.float16,  # of its working space; the result's is asked for at the call
        key=name,
        **markers,
    )

    def product(x: Tensor) -> Tensor:
        found: Tensor = layer.forward(x.half().contiguous(), {}, torch.float32)
        return found

    return product


def self_test(linears: Mapping[str, Exl3Linear]) -> str:
    """What is wrong with the products in use, against the portable ones; empty if nothing.

    One layer of each kind: kernels are chosen by sizes, K and codebook.
    """
    kinds: dict[tuple[object, ...], str] = {}
    for name, linear in linears.items():
        packed = linear.packed
        kinds.setdefault((packed.trellis.shape, packed.codebook), name)
    for name in kinds.values():
        linear = linears[name]
        packed, product = linear.packed, linear.product
        assert product is not None
        generator = torch.Generator().manual_seed(1)
        for n_rows in _N_ROWS:
            x = torch.randn(n_rows, packed.n_in, generator=generator).to(packed.trellis.device)
            expected = linear.portable(x)
            # Against a layer of zeros nothing may come out, so any tiny norm will do.
            scale = expected.norm().clamp_min(torch.finfo(torch.float32).tiny)
            deviation = float((product(x).float() - expected).norm() / scale)
            if not deviation <= TOLERANCE:  # NaN is not
                return (
                    f"{name}: {n_rows} rows differ by {deviation:.1e} from the portable path,"
                    f" more than {TOLERANCE:.0e}"
                )
    return ""
