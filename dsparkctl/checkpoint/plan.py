"""What a checkpoint's notes say of its quantisation, held against what its tensors are.

`exl3_moe_plan.json` and the `quantization_config` of a config are hints: nothing is ever read from
them, formats and K come from the shapes alone. But where they name a layer of this model and say
something else, somebody mixed two builds, and the checkpoint is refused. The live plan's form is
not public, so both are searched for what can be recognised: a layer's name with its K, exllamav3's
`tensor_storage` and `head_bits`, the plan's `dense.drafter.<layer>`, and the fp8 tile. Everything
else in them is passed over.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from dsparkctl.checkpoint.errors import wrong
from dsparkctl.checkpoint.files import CheckpointFiles
from dsparkctl.checkpoint.strict_json import read_json_object

MAX_DEPTH: Final = 16

_K_NAMES: Final = ("k", "K", "bits", "bits_per_weight")
_TILES_AT: Final = "weight_block_size"


class Stored(NamedTuple):
    """One tensor as a header declares it."""

    dtype: str
    shape: tuple[int, ...]
    n_bytes: int
    file: Path


class Contradiction(NamedTuple):
    """A tensor that a note describes otherwise."""

    file: Path
    tensor: str
    what: str


def contradictions(
    files: CheckpointFiles, stored: Mapping[str, Stored], *, fp8_tile: int
) -> list[Contradiction]:
    """One for each statement that a tensor belies; CheckpointError for an unreadable note."""
    book = _Book(stored)
    for path in (files.config, files.inference_config):
        if path is not None:
            config = read_json_object(path).get("quantization_config")
            if isinstance(config, dict):
                note = _Note(path, "quantization_config", config)
                book.hold_against(note)
                book.check_tile(note, fp8_tile)
    if files.exl3_plan is not None:
        book.hold_against(_Note(files.exl3_plan, "", read_json_object(files.exl3_plan)))
    return book.found


class _Note(NamedTuple):
    """An object of a file that describes tensors."""

    path: Path
    at: str
    said: Mapping[str, Any]


@dataclass(slots=True)
class _Book:
    """What is stored, and what was found to contradict it."""

    stored: Mapping[str, Stored]
    found: list[Contradiction] = field(default_factory=list)

    def hold_against(self, note: _Note) -> None:
        for where, key, value in _walk(note.said, note.at, note.path):
            if key == "head_bits":
                self._check_k(note, where, "head", value)
            elif where.endswith("dense.drafter." + key):
                for name in (f"mtp.0.{key}", key):
                    self._check_k(note, where, name, value)
            else:
                self._check_k(note, where, key, _k_of(value))
            if isinstance(value, dict) and {"shape", "dtype"} & value.keys():
                self._check_tensor(note, where, key, value)

    def check_tile(self, note: _Note, tile: int) -> None:
        """The tile of fp8 scales, where there are any."""
        said = note.said.get(_TILES_AT)
        fp8 = next((name for name, t in self.stored.items() if t.dtype == "F8_E4M3"), None)
        if fp8 is not None and isinstance(said, list) and said != [tile, tile]:
            self._add(note, f"{note.at}.{_TILES_AT}", fp8, f"{said[:3]}", f"[{tile}, {tile}]")

    def _check_k(self, note: _Note, where: str, layer: str, said: Any) -> None:
        trellis = self.stored.get(f"{layer}.trellis")
        if trellis is None or not trellis.shape or type(said) not in (int, float):
            return
        if 16 * said != trellis.shape[-1]:
            self._add(note, where, f"{layer}.trellis", f"K {said}", f"K {trellis.shape[-1] / 16:g}")

    def _check_tensor(self, note: _Note, where: str, name: str, said: Mapping[str, Any]) -> None:
        tensor = self.stored.get(name)
        if tensor is None:
            return
        shape, dtype, n_bytes = (said.get(key) for key in ("shape", "dtype", "n_bytes"))
        if isinstance(shape, list) and shape != [*tensor.shape]:
            self._add(note, where, name, f"shape {shape[:8]}", f"{[*tensor.shape]}")
        if isinstance(dtype, str) and _dtype(dtype) not in (None, tensor.dtype):
            self._add(note, where, name, f"dtype {dtype[:20]}", tensor.dtype)
        if type(n_bytes) is int and n_bytes != tensor.n_bytes:
            self._add(note, where, name, f"{n_bytes} bytes", f"{tensor.n_bytes}")

    def _add(self, note: _Note, where: str, name: str, said: str, is_: str) -> None:
        where = where if len(where) <= 200 and where.isprintable() else ascii(where[-200:])
        what = f"{note.path.name}: {where} says {said}, the tensor has {is_}"
        self.found.append(Contradiction(self.stored[name].file, name, what))


_DTYPES: Final = {
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "float16": "F16",
    "half": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float": "F32",
}


def _dtype(said: str) -> str | None:
    """A dtype's name as headers write it; None for one that is not known here."""
    name = said.removeprefix("torch.")
    return _DTYPES.get(name, name if name in _DTYPES.values() else None)


def _k_of(value: Any) -> Any:
    """The K that is said of a layer: a number, or a number under a name for it."""
    if isinstance(value, dict):
        return next((value[name] for name in _K_NAMES if name in value), None)
    return value


def _walk(value: Any, at: str, path: Path, depth: int = 0) -> Iterator[tuple[str, str, Any]]:
    """Every key of every object within, with its whole place."""
    if depth > MAX_DEPTH:
        raise wrong(path, f"nested deeper than {MAX_DEPTH}", at=at[:200])
    if isinstance(value, dict):
        for key, inner in value.items():
            where = f"{at}.{key}" if at else key
            if key != "original_quantization_config":
                yield where, key, inner
                yield from _walk(inner, where, path, depth + 1)
    elif isinstance(value, list):
        for inner in _objects(value):
            yield from _walk(inner, at, path, depth + 1)


def _objects(values: Sequence[Any]) -> Iterator[Any]:
    return (value for value in values if isinstance(value, (dict, list)))
