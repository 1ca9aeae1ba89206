"""Where in the shards a weight of the model lies when it is EXL3 (EXL3 specification §1, §8, §9).

Decides by names alone, discovered by their suffixes: a layer of the weight's own name, slices of it
along its outputs (`P.0`, `P.1`, …), or one layer of a stack that all routed experts share. Whether
the sizes are the model's is decided here too; whether a layer is one is `exl3`'s business.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from dsparkctl.checkpoint.exl3 import BLOCK, SUFFIXES, Codebook, Exl3Layer, Fault, examine
from dsparkctl.checkpoint.header import TensorInfo
from dsparkctl.checkpoint.tensors import Expected

MAX_SLICES = 64

_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(w[123])")


class Exl3Part(NamedTuple):
    """A whole layer, or the one of this number in a stack, and which of its outputs are meant."""

    layer: Exl3Layer
    number: int | None
    n_out: int
    """Logical: the rest is padding."""


class Exl3Weight(NamedTuple):
    """One weight of the model: its parts lie side by side along the outputs."""

    parts: tuple[Exl3Part, ...]
    n_in: int
    """Logical."""


class _Where(NamedTuple):
    """What of the stored names belongs to one weight."""

    prefixes: tuple[str, ...]
    slices: tuple[int, ...] = ()
    """Their numbers, as many as there are prefixes; empty where the weight is not sliced."""
    number: int | None = None
    """In a stack."""


class Exl3Places:
    """The EXL3 layers among the stored tensors; each is examined once."""

    def __init__(
        self,
        stored: Mapping[str, TensorInfo],
        model_names: frozenset[str],
        stack_codebook: Codebook | None,
    ) -> None:
        """`model_names` are the model's own (`ffn.gate.bias` is no bias of an EXL3 layer)."""
        self.faults: list[Fault] = []
        self.layers: dict[str, Exl3Layer] = {}
        self._stack_codebook = stack_codebook or Codebook.THREE_INST
        self._groups = _groups(stored, model_names)
        self._examined: set[str] = set()
        self._n_used: Counter[str] = Counter()

    def claimed(self, expected: Expected) -> set[str]:
        """The names of all tensors that belong to this weight; empty when it is not EXL3."""
        return {
            f"{prefix}.{suffix}"
            for prefix in self._where(expected).prefixes
            for suffix in self._groups[prefix]
        }

    def find(self, expected: Expected) -> Exl3Weight | None:
        """Its parts; None when something is wrong with one, which `faults` then names."""
        where = self._where(expected)
        n_out, n_in = expected.shape
        n_slices = len(where.prefixes)
        if where.slices and where.slices != tuple(range(n_slices)):
            missing = min(set(range(n_slices)) - set(where.slices))
            self._fault(f"{expected.prefix}.{missing}.trellis", "is missing: slices count from 0")
            return None
        if n_out % n_slices:
            what = f"is one of {n_slices} slices, which do not share {n_out} outputs evenly"
            self._fault(f"{where.prefixes[0]}.trellis", what)
            return None
        share = n_out // n_slices
        parts = []
        for prefix in where.prefixes:
            self._n_used[prefix] += 1
            layer = self._layer(prefix)
            if layer is not None and self._fits(layer, share, n_in, where.number):
                parts.append(Exl3Part(layer, where.number, share))
        return Exl3Weight(tuple(parts), n_in) if len(parts) == n_slices else None

    def finish(self) -> None:
        """A stack holds as many layers as the model has experts, not more."""
        for prefix, layer in self.layers.items():
            if layer.n_stacked is not None and layer.n_stacked > self._n_used[prefix]:
                what = f"stacks {layer.n_stacked} layers, the model has {self._n_used[prefix]}"
                self._fault(layer.name("trellis"), what)

    def _where(self, expected: Expected) -> _Where:
        prefix = expected.prefix
        if not expected.is_weight or len(expected.shape) != 2:
            return _Where(())
        if prefix in self._groups:
            return _Where((prefix,))
        slices = tuple(n for n in range(MAX_SLICES) if f"{prefix}.{n}" in self._groups)
        if slices:
            return _Where(tuple(f"{prefix}.{n}" for n in slices), slices)
        expert = _EXPERT.fullmatch(prefix)
        if expert and (stack := f"{expert[1]}.{expert[3]}") in self._groups:
            return _Where((stack,), number=int(expert[2]))
        return _Where(())

    def _layer(self, prefix: str) -> Exl3Layer | None:
        if prefix not in self._examined:
            self._examined.add(prefix)
            layer, faults = examine(prefix, self._groups[prefix], self._stack_codebook)
            self.faults.extend(faults)
            if layer is not None:
                self.layers[prefix] = layer
        return self.layers.get(prefix)

    def _fits(self, layer: Exl3Layer, n_out: int, n_in: int, number: int | None) -> bool:
        name = layer.name("trellis")
        if number is None and layer.n_stacked is not None:
            self._fault(name, "is a stack of layers where one is expected")
        elif number is not None and layer.n_stacked is None:
            self._fault(name, "is one layer where a stack of all experts is expected")
        elif number is not None and layer.n_stacked is not None and number >= layer.n_stacked:
            self._fault(name, f"stacks {layer.n_stacked} layers; the model has more experts")
        elif (layer.n_in, layer.n_out) != (_padded(n_in), _padded(n_out)):
            self._fault(
                name,
                f"is of {layer.n_in} inputs and {layer.n_out} outputs, the config asks for"
                f" {n_in} and {n_out} (padded: {_padded(n_in)} and {_padded(n_out)})",
            )
        else:
            return True
        return False

    def _fault(self, name: str, what: str) -> None:
        fault = Fault(name, what)
        if fault not in self.faults:
            self.faults.append(fault)


def _groups(
    stored: Mapping[str, TensorInfo], model_names: frozenset[str]
) -> dict[str, dict[str, TensorInfo]]:
    """Every prefix that has a tensor only EXL3 has, with all tensors that hang on it directly."""
    marks = SUFFIXES - {"bias"}
    prefixes = {
        name.rpartition(".")[0]
        for name in stored
        if name.rpartition(".")[2] in marks and name not in model_names
    }
    groups: dict[str, dict[str, TensorInfo]] = {prefix: {} for prefix in prefixes}
    for name, info in stored.items():
        prefix, _, suffix = name.rpartition(".")
        is_the_models = name in model_names and suffix != "weight"
        if prefix in groups and not is_the_models:
            groups[prefix][suffix] = info
    return groups


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK
