"""One EXL3 layer of one file as plain numbers, for whoever wants to look or compare.

Strict about the layer, and without a model: only what the file itself says counts. Orientation is
the specification's, [in, out], sides as stored.
"""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dspark_worker.model.exl3.packed import Packed
from dspark_worker.model.exl3.reading import nth, read_packed
from dsparkctl.checkpoint.errors import CheckpointError, wrong
from dsparkctl.checkpoint.exl3 import examine
from dsparkctl.checkpoint.header import read_header


def dequantized(path: Path, key: str, *, inner: bool) -> dict[str, Tensor]:
    """`weight` fp32 [in, out] (and `bias`, where there is one), or `inner` fp16 [in, out].

    `key` is the layer's prefix. A stack gives [E, in, out]. CheckpointError names file, tensor and
    what is wrong.
    """
    header = read_header(path)
    stored = {
        suffix: info
        for name, info in header.items()
        if name.startswith(f"{key}.") and "." not in (suffix := name[len(key) + 1 :])
    }
    layer, faults = examine(key, stored)
    for name, what in faults:
        raise wrong(path, what, at=name)
    assert layer is not None

    def refuse(name: str, what: str) -> CheckpointError:
        return wrong(path, what, at=name)

    trellis = layer.name("trellis")
    try:
        with safe_open(path, framework="pt") as file:
            packed = read_packed(layer, file.get_tensor, refuse, torch.device("cpu"))
        stack = [packed] if layer.n_stacked is None else _layers(packed, layer.n_stacked)
        found = [one.inner() if inner else one.dense() for one in stack]
        result = {
            "inner" if inner else "weight": found[0] if len(stack) == 1 else torch.stack(found)
        }
    except (SafetensorError, OSError) as error:
        raise wrong(path, f"cannot be read ({error})", at=trellis) from None
    except (MemoryError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else "out of memory"
        raise wrong(path, f"cannot be held in memory ({reason})", at=trellis) from None
    if layer.n_stacked == 1:
        result = {name: tensor.unsqueeze(0) for name, tensor in result.items()}
    if packed.bias is not None and not inner:
        result["bias"] = packed.bias
    return result


def _layers(stack: Packed, n_layers: int) -> list[Packed]:
    return [nth(stack, n) for n in range(n_layers)]
