"""An EXL3 layer out of its shard, with every value checked that a header cannot show (spec §10).

Headers were examined before (`dsparkctl.checkpoint.exl3`). What is left are the values: the marker
must be the codebook's constant, scales and bias must be finite. A trellis can hold no wrong value:
only the file's hash knows whether it is the right one.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from dspark_worker.model.exl3.packed import Packed, signs
from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.checkpoint.exl3 import MARKERS, Exl3Layer

Take = Callable[[str], Tensor]
"""Hands out a stored tensor by its whole name."""

Refuse = Callable[[str, str], CheckpointError]
"""Name of a tensor and what is wrong with it, to the error that says so."""


def read_packed(layer: Exl3Layer, take: Take, refuse: Refuse, device: torch.device) -> Packed:
    """All of `layer`'s tensors on `device`; for a stack each has one more axis in front.

    Raises what `refuse` makes of a value that cannot be.
    """
    for suffix in MARKERS.keys() & set(layer.suffixes):
        value = int(take(layer.name(suffix)).reshape(()).to(torch.int64)) & 0xFFFFFFFF
        if value != MARKERS[suffix]:
            what = f"is 0x{value:08X}; the {suffix} codebook's constant is 0x{MARKERS[suffix]:08X}"
            raise refuse(layer.name(suffix), what)
    suh = _scales(layer, "suh", "su", take, refuse)
    svh = _scales(layer, "svh", "sv", take, refuse)
    bias = _finite(layer, "bias", take, refuse) if "bias" in layer.suffixes else None
    trellis = take(layer.name("trellis"))
    return Packed(
        trellis=trellis.view(torch.int16).to(device).contiguous(),
        codebook=layer.codebook,
        suh=suh.to(device),
        svh=svh.to(device),
        bias=None if bias is None else bias.to(device),
    )


def nth(stack: Packed, index: int) -> Packed:
    """One layer of a stack; a view."""
    bias = None if stack.bias is None else stack.bias[index]
    trellis, suh, svh = (tensor[index] for tensor in (stack.trellis, stack.suh, stack.svh))
    return Packed(trellis, stack.codebook, suh, svh, bias)


def _scales(layer: Exl3Layer, scales: str, packed: str, take: Take, refuse: Refuse) -> Tensor:
    if packed in layer.suffixes:
        return signs(take(layer.name(packed)).view(torch.int16))
    return _finite(layer, scales, take, refuse)


def _finite(layer: Exl3Layer, suffix: str, take: Take, refuse: Refuse) -> Tensor:
    values = take(layer.name(suffix)).float()
    if not values.isfinite().all():
        raise refuse(layer.name(suffix), "holds values that are not finite")
    return values
