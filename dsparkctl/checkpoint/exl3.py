"""One EXL3 layer as headers declare it (EXL3 specification §1, §10): codebook, K, sizes.

Decides whether the tensors under one prefix are a layer, and what they say of it; shapes alone say
it, never a config. Refuses to know the model (`exl3_places` does), and reads no byte of data: the
values of markers and scales are checked by whoever maps them.
"""

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from dsparkctl.checkpoint.header import TensorInfo

BLOCK = 128
"""Every stored side is a multiple of it; a narrower weight was padded with zeros."""

MARKERS: Mapping[str, int] = {"mcg": 0xCBAC1FED, "mul1": 0x83DCD12D}
"""Suffix of the scalar that selects a codebook -> the one value it may have, modulo 2^32."""

SUFFIXES = frozenset({"trellis", "suh", "svh", "su", "sv", "bias", *MARKERS})

_WHOLE_K = range(16, 129, 16)
_HALF_K = (24, 40, 56)

_DTYPES: Mapping[str, tuple[str, ...]] = {
    "trellis": ("I16", "U16"),
    "suh": ("F16",),
    "svh": ("F16",),
    "su": ("I16", "U16"),
    "sv": ("I16", "U16"),
    "bias": ("F16", "F32"),
    "mcg": ("I32", "U32"),
    "mul1": ("I32", "U32"),
}


class Codebook(Enum):
    """How a 16-bit state becomes a number (§4); the words are those of a config."""

    THREE_INST = "3inst"
    MCG = "mcg"
    MUL1 = "mul1"


class Exl3Layer(NamedTuple):
    """One layer, or a stack of equal ones, as stored: sides are padded ones."""

    prefix: str
    codebook: Codebook
    n_words: int
    """T, 16-bit words of a tile: 16·K."""
    n_in: int
    n_out: int
    n_stacked: int | None
    """Layers of a rank-4 trellis; None for an ordinary one."""
    suffixes: tuple[str, ...]
    """Which of the tensors there are, sorted."""
    n_bytes: int

    @property
    def bits(self) -> float:
        """K, bits per code."""
        return self.n_words / 16

    @property
    def n_weights(self) -> int:
        return (self.n_stacked or 1) * self.n_in * self.n_out

    @property
    def bits_per_weight(self) -> float:
        """Everything stored, scales and signs too."""
        return 8 * self.n_bytes / self.n_weights

    def name(self, suffix: str) -> str:
        return f"{self.prefix}.{suffix}"


class Fault(NamedTuple):
    """One tensor of a layer, by its whole name, and what is wrong with it."""

    name: str
    what: str


def examine(
    prefix: str, stored: Mapping[str, TensorInfo], codebook: Codebook = Codebook.THREE_INST
) -> tuple[Exl3Layer | None, list[Fault]]:
    """The layer that `stored` (suffix -> tensor) makes, and every fault; None when it is none.

    `codebook` is that of a stack without a marker; an ordinary layer without one has 3INST.
    """
    if not stored:
        return None, [Fault(f"{prefix}.trellis", "is missing")]
    faults: list[Fault] = []

    def fault(suffix: str, what: str) -> None:
        faults.append(Fault(f"{prefix}.{suffix}", what))

    for suffix in sorted(stored.keys() - SUFFIXES):
        fault(suffix, _stranger(suffix))
    for suffix in sorted(stored.keys() & SUFFIXES):
        if (dtype := stored[suffix].dtype) not in _DTYPES[suffix]:
            fault(suffix, f"is stored as {dtype}; EXL3 has {' or '.join(_DTYPES[suffix])} there")
    if len(MARKERS.keys() & stored.keys()) > 1:
        fault("mul1", "stands beside mcg: a layer has one codebook")
    for suffix in sorted(MARKERS.keys() & stored.keys()):
        if stored[suffix].shape not in ((), (1,)):
            fault(suffix, f"has shape {list(stored[suffix].shape)}; a marker is a scalar")
    for packed, scales in (("su", "suh"), ("sv", "svh")):
        if packed in stored and scales in stored:
            fault(packed, f"stands beside {scales}: either packed signs or scales")
        if not (packed in stored or scales in stored):
            fault(scales, f"is missing (signs may also be packed, as {packed})")
    trellis = stored.get("trellis")
    if trellis is None:
        fault("trellis", "is missing")
        return None, faults
    layer = _shaped(prefix, trellis.shape, stored, codebook)
    if isinstance(layer, str):
        fault("trellis", layer)
        return None, faults
    lead = () if layer.n_stacked is None else (layer.n_stacked,)
    sizes = {
        "suh": layer.n_in, "su": layer.n_in // 16,
        "svh": layer.n_out, "sv": layer.n_out // 16, "bias": layer.n_out,
    }  # fmt: skip
    for suffix in sorted(sizes.keys() & stored.keys()):
        shape, asked = stored[suffix].shape, (*lead, sizes[suffix])
        if shape != asked:
            fault(suffix, f"has shape {list(shape)}, its trellis asks for {list(asked)}")
    return (None if faults else layer), faults


def _shaped(
    prefix: str, shape: tuple[int, ...], stored: Mapping[str, TensorInfo], codebook: Codebook
) -> Exl3Layer | str:
    """What the trellis' shape says, or why it cannot be one."""
    if len(shape) not in (3, 4):
        return (
            f"has shape {list(shape)}; a trellis is [in/16, out/16, 16·K], a stack of them [E, …]"
        )
    if 0 in shape:
        return f"has shape {list(shape)}: it is empty"
    n_stacked = shape[0] if len(shape) == 4 else None
    rows, columns, n_words = shape[-3:]
    if "mul1" in stored:
        codebook = Codebook.MUL1
    elif "mcg" in stored:
        codebook = Codebook.MCG
    elif n_stacked is None:
        codebook = Codebook.THREE_INST
    if n_words in _HALF_K and codebook is not Codebook.MUL1:
        return f"has K {n_words / 16:g}, which only the mul1 codebook has"
    if n_words not in (*_WHOLE_K, *_HALF_K):
        return (
            f"has tiles of {n_words} words, so K {n_words}/16; it must be 1 to 8, 1.5, 2.5 or 3.5"
        )
    n_in, n_out = 16 * rows, 16 * columns
    for side, size in (("in", n_in), ("out", n_out)):
        if size % BLOCK:
            return f"has {side} = {size}, not a multiple of {BLOCK}"
    n_bytes = sum(info.n_bytes for info in stored.values())
    suffixes = tuple(sorted(stored))
    return Exl3Layer(prefix, codebook, n_words, n_in, n_out, n_stacked, suffixes, n_bytes)


def _stranger(suffix: str) -> str:
    if suffix == "weight":
        return "stands beside a trellis: which of the two is meant cannot be known"
    if suffix == "scale":
        return "belongs to an obsolete form of EXL3 that nobody reads any more"
    return "is no tensor of an EXL3 layer"
