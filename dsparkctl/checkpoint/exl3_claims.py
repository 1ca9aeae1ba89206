"""What configs claim about EXL3 layers, to be held against the tensors (EXL3 spec §8, §10).

`quantization_config` (in config.json, or the file of that name beside it) may list every stored
tensor, name a codebook, and state bits; a plan may state bits for the drafter's dense layers. The
shapes of the tensors decide: a claim that contradicts them refuses the checkpoint, and nothing else
is done with one. The exception is a stack of experts, whose codebook no tensor names.

Forms that are not known are passed over: the plan's is nobody's public one.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dsparkctl.checkpoint.errors import wrong
from dsparkctl.checkpoint.exl3 import Codebook, Exl3Layer
from dsparkctl.checkpoint.files import CheckpointFiles
from dsparkctl.checkpoint.header import TensorInfo
from dsparkctl.checkpoint.strict_json import read_json_object

QUANTIZATION_FILE = "quantization_config.json"

_DENSE = {"main_proj": "mtp.0.main_proj", "head": "head"}
"""What a plan calls the drafter's dense layers."""


class Claim(NamedTuple):
    """One statement about one layer or tensor."""

    file: Path
    at: str
    """The key."""
    name: str
    """Prefix of a layer, or the whole name of a tensor."""
    said: Mapping[str, Any]
    """`bits` of a layer, or `shape`, `dtype`, `n_bytes` of a tensor."""


class Claims(NamedTuple):
    """Everything that is claimed."""

    codebook: Codebook | None
    claims: tuple[Claim, ...]
    codebook_in: Path | None = None
    """The file that names it."""

    def contradicted(
        self, stored: Mapping[str, TensorInfo], layers: Mapping[str, Exl3Layer]
    ) -> Iterator[tuple[Claim, str]]:
        """Each claim that the tensors do not bear out, with the difference."""
        yield from self._without_markers(layers)
        for claim in self.claims:
            if "bits" in claim.said:
                layer = layers.get(claim.name)
                if layer is not None and layer.bits != claim.said["bits"]:
                    yield claim, f"says K {claim.said['bits']}, its trellis has K {layer.bits:g}"
            elif (info := stored.get(claim.name)) is not None:
                for key, is_so in _facts(info).items():
                    if key in claim.said and claim.said[key] != is_so:
                        yield claim, f"says {ascii(claim.said[key])[:60]}, the file {is_so} ({key})"

    def _without_markers(self, layers: Mapping[str, Exl3Layer]) -> Iterator[tuple[Claim, str]]:
        """Layers that have lost theirs. A marker of another codebook is believed over a config."""
        if self.codebook in (None, Codebook.THREE_INST) or self.codebook_in is None:
            return
        for name, layer in layers.items():
            if layer.n_stacked is None and layer.codebook is Codebook.THREE_INST:
                claim = Claim(self.codebook_in, "codebook", name, {})
                yield claim, f"says {self.codebook.value}, {name} has no marker of it (so 3inst)"


def read_claims(files: CheckpointFiles) -> Claims:
    """CheckpointError only for a file that is no JSON, or a codebook that nobody knows."""
    found: list[Claim] = []
    codebook: Codebook | None = None
    codebook_in: Path | None = None
    beside = files.directory / QUANTIZATION_FILE
    for path, is_config in (
        (files.config, True),
        (beside if beside.is_file() else None, False),
        (files.exl3_plan, False),
    ):
        if path is None:
            continue
        value: Any = read_json_object(path)
        if is_config:
            nested = value.get("text_config")
            inner = nested.get("quantization_config") if isinstance(nested, dict) else None
            value = value.get("quantization_config") or inner or {}
        if not isinstance(value, dict):
            continue
        # No receipt proves the file beside (§6.7): it may contradict, never decide.
        if path != beside and codebook is None and (codebook := _codebook(path, value)):
            codebook_in = path
        found.extend(_tensors(path, value))
        found.extend(_plan(path, value))
    return Claims(codebook, tuple(found), codebook_in)


def _codebook(path: Path, value: Mapping[str, Any]) -> Codebook | None:
    word = value.get("codebook")
    if word is None:
        return None
    try:
        return Codebook(word)
    except ValueError:
        raise wrong(path, f"{ascii(word)[:40]} is no codebook of EXL3", at="codebook") from None


def _tensors(path: Path, value: Mapping[str, Any]) -> Iterator[Claim]:
    storage = value.get("tensor_storage")
    for module in storage.values() if isinstance(storage, dict) else ():
        stored = module.get("stored_tensors") if isinstance(module, dict) else None
        for name, said in stored.items() if isinstance(stored, dict) else ():
            if isinstance(said, dict):
                yield Claim(path, f"tensor_storage {name}"[:200], name, said)


def _plan(path: Path, value: Mapping[str, Any]) -> Iterator[Claim]:
    nested = value.get("exl3_moe")
    plan = nested if isinstance(nested, dict) else value
    dense = plan.get("dense")
    drafter = dense.get("drafter") if isinstance(dense, dict) else None
    for key, bits in drafter.items() if isinstance(drafter, dict) else ():
        if key in _DENSE and type(bits) in (int, float):
            yield Claim(path, f"dense.drafter.{key}", _DENSE[key], {"bits": bits})


_TORCH_NAMES = {"I16": "int16", "U16": "uint16", "I32": "int32", "U32": "uint32"} | {
    "F16": "float16", "BF16": "bfloat16", "F32": "float32"
}  # fmt: skip


def _facts(info: TensorInfo) -> dict[str, Any]:
    """As exllamav3 states them; a dtype is torch's word for it."""
    facts: dict[str, Any] = {"shape": list(info.shape), "n_bytes": info.n_bytes}
    if info.dtype in _TORCH_NAMES:
        facts["dtype"] = f"torch.{_TORCH_NAMES[info.dtype]}"
    return facts
