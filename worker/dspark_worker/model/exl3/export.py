"""One EXL3 layer of one file as plain numbers, for whoever wants to look or compare.

Strict about the layer, and without a model: only what the file itself says counts. Orientation is
the specification's, [in, out], sides as stored.
"""

from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from dspark_worker.model.exl3.packed import Packed
from dspark_worker.model.exl3.reading import nth, read_packed
from dspark_worker.model.shard import open_shard
from dsparkctl.checkpoint.errors import CheckpointError, wrong
from dsparkctl.checkpoint.exl3 import examine

_OF_A_LAYER: Final = {"trellis", "suh", "svh", "su", "sv", "mcg", "mul1"}


def dequantized(path: Path, key: str, *, inner: bool) -> dict[str, Tensor]:
    """`weight` fp32 [in, out] (and `bias`, where there is one), or `inner` fp16 [in, out].

    `key` is the layer's prefix. A stack gives [E, in, out]. CheckpointError names file, tensor and
    what is wrong.
    """

    def refuse(name: str, what: str) -> CheckpointError:
        return wrong(path, what, at=name)

    with open_shard(path) as shard:
        stored = {
            suffix: info
            for name, info in shard.header.items()
            if name.startswith(f"{key}.") and "." not in (suffix := name[len(key) + 1 :])
        }
        if not stored.keys() & _OF_A_LAYER:
            held = f"only {', '.join(sorted(stored))}" if stored else "nothing"
            raise wrong(path, f"holds no EXL3 layer {key}: of that name there is {held}")
        layer, faults = examine(key, stored)
        for name, what in faults:
            raise refuse(name, what)
        assert layer is not None
        packed = read_packed(layer, shard.take, refuse, torch.device("cpu"))
    try:
        stack = [packed] if layer.n_stacked is None else _layers(packed, layer.n_stacked)
        found = [one.inner() if inner else one.dense() for one in stack]
        result = {
            "inner" if inner else "weight": found[0] if len(stack) == 1 else torch.stack(found)
        }
    except (MemoryError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else "out of memory"
        raise refuse(layer.name("trellis"), f"cannot be held in memory ({reason})") from None
    if layer.n_stacked == 1:
        result = {name: tensor.unsqueeze(0) for name, tensor in result.items()}
    if packed.bias is not None and not inner:
        result["bias"] = packed.bias
    return result


def _layers(stack: Packed, n_layers: int) -> list[Packed]:
    return [nth(stack, n) for n in range(n_layers)]
