"""Products with EXL3 weights: activations are turned, matrices never (EXL3 specification §7, §12).

y = ((x·suh)·H · D)·H · svh + bias, all in fp32 on a CPU. On CUDA, D is fp16, where it is exact, and
the product with it takes fp16 and adds up in fp32, as the format's own kernels do; the rest is
fp32 there too.

Decides where D comes from: decoded at load for what every round uses (`pin`), from the cache for
experts. A matrix that the budget does not hold is decoded piece by piece, at every use.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from dspark_worker.model.exl3.cache import DecodedCache
from dspark_worker.model.exl3.hadamard import transformed
from dspark_worker.model.exl3.packed import Packed
from dspark_worker.model.exl3.tiles import in_order
from dsparkctl.checkpoint.exl3 import BLOCK

PIECE_WEIGHTS = 1 << 24
"""Decoded at a time where a matrix is not kept: 64 MiB of fp32. No live expert is larger."""


class Exl3Linear:
    """One layer, or a part of one; see `linear.Linear`."""

    def __init__(
        self, packed: Packed, n_in: int, n_out: int, cache: DecodedCache, *, is_expert: bool
    ) -> None:
        """`n_in` and `n_out` are logical: inputs are padded, outputs that are padding dropped."""
        self.packed = packed
        self.n_in = n_in
        self.n_out = n_out
        self.product: Callable[[Tensor], Tensor] | None = None
        """Somebody else's instead of `portable`; see `kernels`."""
        self._cache = cache
        self._is_kept = is_expert
        self._pinned: Tensor | None = None
        self._pieces = _pieces(packed)

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out] in x's dtype."""
        packed = self.packed
        wide = x.float()
        if packed.n_in != self.n_in:
            wide = torch.nn.functional.pad(wide, (0, packed.n_in - self.n_in))
        if self.product is None:
            y = self.portable(wide)
        else:
            y = self.product(wide.reshape(-1, packed.n_in)).view(*x.shape[:-1], packed.n_out)
        if packed.bias is not None:
            y = y + packed.bias
        return y[..., : self.n_out].to(x.dtype)

    @property
    def is_resident(self) -> bool:
        """Whether its matrix stays at one place, as a recorded launch asks for."""
        return self.product is not None or self._pinned is not None

    def portable(self, x: Tensor) -> Tensor:
        """fp32 [..., in] -> fp32 [..., out], sides as stored, without the bias."""
        turned = transformed(x * self.packed.suh).to(self._cache.dtype)
        parts = [in_order(turned @ self._matrix(n)).float() for n in range(len(self._pieces))]
        return transformed(parts[0] if len(parts) == 1 else torch.cat(parts, -1)) * self.packed.svh

    def pin(self) -> None:
        """Decode for good what every round uses, where the budget holds it."""
        packed = self.packed
        if self._is_kept or self.product is not None or self._pinned is not None:
            return
        self._pinned = self._cache.pin(packed.n_weights)
        if self._pinned is not None:
            packed.decoded(self._pinned.view(packed.n_in, packed.n_out))
            self._pieces = [packed]

    def _matrix(self, n: int) -> Tensor:
        """D of piece `n`, [in, out], columns as decoded."""
        piece = self._pieces[n]
        shape = (piece.n_in, piece.n_out)
        if self._pinned is not None:
            return self._pinned.view(shape)
        if not self._is_kept:
            return piece.decoded(self._cache.shared(piece.n_weights).view(shape))
        key = (id(self), n)
        found = self._cache.find(key)
        if found is None:
            found = self._cache.room(key, piece.n_weights)
            piece.decoded(found.view(shape))
        return found.view(shape)


def _pieces(packed: Packed) -> list[Packed]:
    """The layer cut along its outputs."""
    width = max(BLOCK, PIECE_WEIGHTS // packed.n_in // BLOCK * BLOCK)
    starts = range(0, packed.n_out, width)
    return [packed.columns(start, min(start + width, packed.n_out)) for start in starts]


class Exl3Sliced:
    """Layers side by side along the outputs."""

    def __init__(self, parts: tuple[Exl3Linear, ...]) -> None:
        self.parts = parts

    @property
    def is_resident(self) -> bool:
        return all(part.is_resident for part in self.parts)

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., Σ out]"""
        return torch.cat([part(x) for part in self.parts], dim=-1)


class Exl3Grouped:
    """A layer for each group of inputs (wo_a); see `linear.GroupedLinear`."""

    def __init__(self, groups: tuple[Exl3Linear, ...]) -> None:
        self.groups = groups

    def __call__(self, x: Tensor) -> Tensor:
        """[t, G, in] -> [t, G, out]"""
        return torch.stack([group(x[:, g]) for g, group in enumerate(self.groups)], dim=1)
