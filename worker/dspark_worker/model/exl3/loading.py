"""The EXL3 layers of a checkpoint, on their way into the model.

Decides how a weight's place (`dsparkctl.checkpoint.exl3_places`) becomes something that multiplies:
one layer, slices side by side, a layer of a stack, or a layer for each group of inputs. Routed
experts are those that the cache may drop; everything else is used in every round.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from dspark_worker.model.exl3.cache import DecodedCache
from dspark_worker.model.exl3.linear import Exl3Grouped, Exl3Linear, Exl3Sliced
from dspark_worker.model.exl3.packed import Packed
from dspark_worker.model.exl3.reading import Refuse, Take, nth, read_packed
from dspark_worker.model.linear import Linear
from dsparkctl.checkpoint.exl3 import BLOCK
from dsparkctl.checkpoint.exl3_places import Exl3Part, Exl3Weight


class Exl3Weights:
    """What is handed out stays packed; `places` maps `P.weight` to where it lies."""

    def __init__(
        self,
        places: Mapping[str, Exl3Weight],
        take: Take,
        refuse: Refuse,
        device: torch.device,
        cache: DecodedCache,
    ) -> None:
        self.linears: dict[str, Exl3Linear] = {}
        """Everything that was handed out, by prefix and, where it is a part, its number."""
        self._places = places
        self._take = take
        self._refuse = refuse
        self._device = device
        self._cache = cache
        self._stacks: dict[str, Packed] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def linear(self, name: str) -> Linear:
        """[..., in] -> [..., out]"""
        place = self._places[name]
        parts = tuple(self._linear(place, part) for part in place.parts)
        return parts[0] if len(parts) == 1 else Exl3Sliced(parts)

    def grouped(self, name: str, n_groups: int) -> Exl3Grouped | None:
        """[t, G, in] -> [t, G, out]; None when groups cut across the blocks of 128 outputs."""
        place = self._places[name]
        share = sum(part.n_out for part in place.parts) // n_groups
        if share % BLOCK or any(part.n_out % share for part in place.parts):
            return None
        groups: list[Exl3Linear] = []
        for part in place.parts:
            packed = self._packed(part)
            for start in range(0, part.n_out, share):
                group = packed.columns(start, start + share)
                found = Exl3Linear(group, place.n_in, share, self._cache, is_expert=False)
                self.linears[f"{part.layer.prefix}[{len(groups)}]"] = found
                groups.append(found)
        return Exl3Grouped(tuple(groups))

    def dense(self, name: str) -> Tensor:
        """fp32 [out, in], for what the model does not use as a product."""
        place = self._places[name]
        rows = []
        for part in place.parts:
            packed = self._packed(part)
            if packed.bias is not None:
                raise self._refuse(
                    part.layer.name("bias"), "cannot be served: this weight has none"
                )
            rows.append(packed.dense()[: place.n_in, : part.n_out].T)
        return torch.cat(rows).contiguous()

    def _linear(self, place: Exl3Weight, part: Exl3Part) -> Exl3Linear:
        prefix = part.layer.prefix
        found = Exl3Linear(
            self._packed(part),
            place.n_in,
            part.n_out,
            self._cache,
            is_expert=".experts." in prefix,
        )
        self.linears[prefix if part.number is None else f"{prefix}[{part.number}]"] = found
        return found

    def _packed(self, part: Exl3Part) -> Packed:
        layer = part.layer
        if part.number is None:
            return read_packed(layer, self._take, self._refuse, self._device)
        if layer.prefix not in self._stacks:
            self._stacks[layer.prefix] = read_packed(layer, self._take, self._refuse, self._device)
        return nth(self._stacks[layer.prefix], part.number)
