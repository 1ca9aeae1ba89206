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
from dsparkctl.checkpoint.exl3 import Exl3Layer
from dsparkctl.checkpoint.exl3_claims import Claims, read_claims
from dsparkctl.checkpoint.exl3_places import Exl3Places, Exl3Weight
from dsparkctl.checkpoint.files import CheckpointFiles
from dsparkctl.checkpoint.header import TensorInfo, read_header
from dsparkctl.checkpoint.model_config import ModelConfig
from dsparkctl.checkpoint.tensors import PLAIN_DTYPES, TILE, Expected, Kind, expected_tensors


class Format(Enum):
    """How one stored tensor is to be read."""

    PLAIN = "plain"
    FP8 = "fp8"
    FP4 = "fp4"
    SCALE = "scale"
    """The scale of the fp8 or fp4 weight of the same prefix."""
    EXL3 = "exl3"
    """One of the tensors that make an EXL3 layer."""
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
    exl3_layers: tuple[Exl3Layer, ...] = ()
    """Every sound one, sorted by name."""
    exl3_weights: Mapping[str, Exl3Weight] = field(default_factory=dict)
    """Of the model's weights (`P.weight`) those that are EXL3: where each lies."""

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
    headers = {path: read_header(path) for path in files.shards}
    is_exl3 = any(name.endswith(".trellis") for header in headers.values() for name in header)
    return compare(headers, config, where, read_claims(files) if is_exl3 else NO_CLAIMS)


NO_CLAIMS = Claims(None, ())


def compare(
    headers: Mapping[Path, Mapping[str, TensorInfo]],
    config: ModelConfig,
    where: Path,
    claims: Claims = NO_CLAIMS,
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
    names = frozenset(expected.name for expected in expected_all)
    places = Exl3Places(found.stored, names, claims.codebook)
    for expected in expected_all:
        if claimed := places.claimed(expected):
            found.place_exl3(expected, claimed, places)
        else:
            found.place(expected)
    places.finish()
    found.judge_exl3(places, claims)
    for name in found.stored.keys() - found.formats.keys():
        found.formats[name] = Format.UNKNOWN
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
        exl3_layers=tuple(layer for _, layer in sorted(places.layers.items())),
        exl3_weights=found.exl3_weights,
    )


@dataclass(slots=True)
class _Comparison:
    """The books while the table is walked."""

    stored: dict[str, TensorInfo] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    formats: dict[str, Format] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    wrong: list[Problem] = field(default_factory=list)
    exl3_weights: dict[str, Exl3Weight] = field(default_factory=dict)

    def place_exl3(self, expected: Expected, claimed: set[str], places: Exl3Places) -> None:
        """`claimed` are the tensors of one weight; it keeps no `P.weight`."""
        for name in claimed:
            self.formats[name] = Format.EXL3
        weight = places.find(expected)
        if weight is not None:
            self.exl3_weights[expected.name] = weight

    def judge_exl3(self, places: Exl3Places, claims: Claims) -> None:
        """What is wrong with layers, in the file that holds (or should hold) the tensor."""
        for name, what in places.faults:
            self.wrong.append(Problem(self._file_of(name), name, what))
        for claim, what in claims.contradicted(self.stored, places.layers):
            self.wrong.append(Problem(claim.file, claim.at, what))

    def _file_of(self, name: str) -> Path:
        """Of a tensor that may be missing: the file of the nearest one there is."""
        at = name
        while at not in self.files:
            at, _, _ = at.rpartition(".")
            near = next((stored for stored in self.stored if stored.startswith(f"{at}.")), None)
            at = near or at
        return self.files[at]

    def place(self, expected: Expected) -> None:
        """Find out how `expected` is stored, if it is."""
        info = self.stored.get(expected.name)
        if info is None:
            if not expected.optional:
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
