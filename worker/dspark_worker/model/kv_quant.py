"""What a stored key/value vector loses in the cache format of the engine (model specification §7).

Both formats quantise to e4m3 with a power-of-two scale for each group and come back: the values are
those a cache read would give, in the dtype the model computes in. `v4_record_64` is what the live
Sparks do: the rotated components stay bf16 there, whatever the compute dtype, since that is how the
record holds them.
"""

from enum import Enum

import torch
from torch import Tensor

from dsparkctl.checkpoint.errors import CheckpointError

E4M3_MAX = 448.0
AMAX_MIN = 1e-4


class KvQuant(Enum):
    """The formats by the names the operator gives them."""

    NONE = "none"
    MXFP8_32 = "mxfp8_32"
    V4_RECORD_64 = "v4_record_64"


def choose(name: str, head_dim: int, rope_dim: int) -> KvQuant:
    """Resolve `auto` and refuse a format whose groups do not divide the dims; `CheckpointError`."""
    still_dim = head_dim - rope_dim
    record_fits = still_dim > 0 and still_dim % 64 == 0
    if name == "auto":
        return KvQuant.V4_RECORD_64 if record_fits else KvQuant.NONE
    try:
        chosen = KvQuant(name)
    except ValueError:
        known = ", ".join(kind.value for kind in KvQuant)
        raise CheckpointError(f"kv-quant {name!r} is not known; use auto, {known}") from None
    if chosen is KvQuant.V4_RECORD_64 and not record_fits:
        raise CheckpointError(
            f"kv-quant v4_record_64: groups of 64 do not divide the {still_dim} unrotated"
            " components of a head; use none"
        )
    if chosen is KvQuant.MXFP8_32 and head_dim % 32:
        raise CheckpointError(
            f"kv-quant mxfp8_32: groups of 32 do not divide the {head_dim} components of a head;"
            " use none"
        )
    return chosen


def through_cache(kv: Tensor, kind: KvQuant, rope_dim: int) -> Tensor:
    """`kv` [..., d] after rope -> the same shape and dtype, as a read of the cache returns it."""
    if kind is KvQuant.NONE:
        return kv
    if kind is KvQuant.MXFP8_32:
        return _through_e4m3(kv, 32)
    still, turned = kv[..., :-rope_dim], kv[..., -rope_dim:]
    return torch.cat((_through_e4m3(still, 64), turned.to(torch.bfloat16).to(kv.dtype)), dim=-1)


def _through_e4m3(x: Tensor, group: int) -> Tensor:
    groups = x.float().reshape(*x.shape[:-1], -1, group)
    amax = groups.abs().amax(-1, keepdim=True).clamp_min(AMAX_MIN)
    # ratio = m·2^e with m in [0.5, 1): ceil(log2) is e, but e - 1 at an exact power of two,
    # where a float logarithm may land on either side.
    mantissa, exponent = torch.frexp(amax / E4M3_MAX)
    exponent = exponent - (mantissa == 0.5).to(exponent.dtype)
    scale = torch.ldexp(torch.ones_like(amax), exponent)
    codes = (groups / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return (codes.float() * scale).view(x.shape).to(x.dtype)
