"""What the shards hold, held against what the model needs.

Decides for every stored tensor its format, and which are missing, unknown or wrong. Pure: it sees
headers only. `checkpoint inspect` prints the result; the loader refuses anything that is not in
order, and reads each weight as the format that was found here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from dsparkctl.checkpoint.errors import CheckpointError, wrong
from dsparkctl.checkpoint.files import CheckpointFiles
from dsparkctl.checkpoint.header import TensorInfo, read_header
from dsparkctl.checkpoint.model_config import ModelConfig
from dsparkctl.checkpoint.tensors import PLAIN_DTYPES, TILE, Expected, Kind, expected_tensors

EXL3_NAMES = {"trellis", "suh", "svh", "su", "sv", "mcg", "mul1"}


class Format(Enum):
    """How one stored tensor is to be read."""

    PLAIN = "plain"
    FP8 = "fp8"
    FP4 = "fp4"
    SCALE = "scale"
    """The scale of the fp8 or fp4 weight of the same prefix."""
    EXL3 = "exl3"
    IGNORED = "ignored"
    """Known, and not used for drafting."""
    UNKNOWN = "unknown"


class Row(NamedTuple):
    """One stored tensor; shape and bytes are those of the file, not of the unpacked weight."""

    name: str
    format: Format
    dtype: str
    shape: tuple[int, ...]
    n_bytes: int
    file: Path


class Problem(NamedTuple):
    """Why a checkpoint is refused: one tensor, where it lies (or should), and what is wrong."""

    file: Path
    tensor: str
    what: str

    def error(self) -> CheckpointError:
        return wrong(self.file, self.what, at=self.tensor)


@dataclass(frozen=True, slots=True)
class Inspection:
    """The whole checkpoint at a glance; `ok` when nothing stands in the way of loading it."""

    rows: tuple[Row, ...]
    """Sorted by name."""
    missing: tuple[str, ...]
    unknown: tuple[str, ...]
    wrong: tuple[Problem, ...]
    where: Path
    """What a missing tensor is missing from: the only shard, or the folder."""

    @property
    def ok(self) -> bool:
        return not (self.missing or self.unknown or self.wrong)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Everything that stands in the way, the most telling first."""
        files = {row.name: row.file for row in self.rows}
        unknown = [
            Problem(files[name], name, "is no tensor of this model") for name in self.unknown
        ]
        missing = [Problem(self.where, name, "is missing") for name in self.missing]
        return (*self.wrong, *missing, *unknown)


def inspect(files: CheckpointFiles, config: ModelConfig) -> Inspection:
    """Read every shard's header and compare; `CheckpointError` only for a file that is damaged."""
    where = files.shards[0] if len(files.shards) == 1 else files.directory
    return compare({path: read_header(path) for path in files.shards}, config, where)


def compare(
    headers: Mapping[Path, Mapping[str, TensorInfo]], config: ModelConfig, where: Path
) -> Inspection:
    """The same over headers already read."""
    found = _Comparison()
    for path, header in headers.items():
        for name, info in header.items():
            if name in found.files:
                what = f"stands in {found.files[name].name} too"
                found.wrong.append(Problem(path, name, what))
            else:
                found.stored[name], found.files[name] = info, path
    expected_all = tuple(expected_tensors(config))
    found.find_exl3({expected.prefix for expected in expected_all if expected.is_weight})
    for expected in expected_all:
        found.place(expected)
    for name in found.stored.keys() - found.formats.keys():
        is_exl3 = name.rpartition(".")[0] in found.exl3_layers
        found.formats[name] = Format.EXL3 if is_exl3 else Format.UNKNOWN
    rows = [
        Row(name, found.formats[name], info.dtype, info.shape, info.n_bytes, found.files[name])
        for name, info in sorted(found.stored.items())
    ]
    return Inspection(
        rows=tuple(rows),
        missing=tuple(found.missing),
        unknown=tuple(row.name for row in rows if row.format is Format.UNKNOWN),
        wrong=tuple(found.wrong),
        where=where,
    )


@dataclass(slots=True)
class _Comparison:
    """The books while the table is walked."""

    stored: dict[str, TensorInfo] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    exl3_layers: dict[str, str] = field(default_factory=dict)
    """Prefix of EXL3 tensors -> the layer of the model they belong to."""
    formats: dict[str, Format] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    wrong: list[Problem] = field(default_factory=list)

    def find_exl3(self, layers: set[str]) -> None:
        """EXL3 keeps no `P.weight`; a layer may also be cut into slices `P.<n>` (§2)."""
        for name in self.stored:
            prefix, _, last = name.rpartition(".")
            if last in EXL3_NAMES:
                for layer in (prefix, prefix.rpartition(".")[0]):
                    if layer in layers:
                        self.exl3_layers[prefix] = layer

    def place(self, expected: Expected) -> None:
        """Find out how `expected` is stored, if it is."""
        info = self.stored.get(expected.name)
        if info is None:
            if not expected.optional and expected.prefix not in self.exl3_layers.values():
                self.missing.append(expected.name)
        elif info.dtype in PLAIN_DTYPES:
            self.formats[expected.name] = Format.IGNORED if expected.optional else Format.PLAIN
            self._check_shape(expected.name, expected.shape)
        elif info.dtype == "F8_E4M3" and expected.kind is Kind.DENSE:
            n_out, n_in = expected.shape
            self.formats[expected.name] = Format.FP8
            self._check_shape(expected.name, expected.shape)
            self._place_scale(expected, (-(-n_out // TILE), -(-n_in // TILE)))
        elif info.dtype == "I8" and expected.kind is Kind.EXPERT:
            n_out, n_in = expected.shape
            self.formats[expected.name] = Format.FP4
            if n_in % TILE:
                self._is_wrong(
                    expected.name, f"its {n_in} inputs do not split into groups of {TILE}"
                )
                return
            self._check_shape(expected.name, (n_out, n_in // 2))
            self._place_scale(expected, (n_out, n_in // TILE))
        else:
            self.formats[expected.name] = Format.PLAIN
            also = "" if expected.kind is Kind.FLOAT else f", or {expected.kind.value}"
            self._is_wrong(
                expected.name, f"is stored as {info.dtype}; expected {'/'.join(PLAIN_DTYPES)}{also}"
            )

    def _place_scale(self, expected: Expected, shape: tuple[int, int]) -> None:
        name = expected.scale_name
        info = self.stored.get(name)
        if info is None:
            self.missing.append(name)
            return
        self.formats[name] = Format.SCALE
        self._check_shape(name, shape)
        if info.dtype != "F8_E8M0":
            self._is_wrong(name, f"is stored as {info.dtype}; a scale is F8_E8M0")

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        stored = self.stored[name].shape
        if stored != shape:
            self._is_wrong(name, f"has shape {list(stored)}, the config asks for {list(shape)}")

    def _is_wrong(self, name: str, what: str) -> None:
        self.wrong.append(Problem(self.files[name], name, what))
