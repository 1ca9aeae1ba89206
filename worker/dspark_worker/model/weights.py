"""The checkpoint's tensors, handed out once each (model specification §2, pitfalls 1, 2, 10, 12).

Opening refuses every checkpoint that is not exactly the model: headers are checked against the
files before data is read, then names, shapes and dtypes against the table. After that each tensor
is taken exactly once, by its whole name; a second taking is our own mistake, and so is a tensor
that nobody took: `finish` says so. Order of shards and of tensors in them means nothing.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from dspark_worker.model.dequant import fp4_packed, fp8_tiles
from dspark_worker.model.exl3.cache import DecodedCache
from dspark_worker.model.exl3.loading import Exl3Weights
from dspark_worker.model.linear import GroupedLinear, Linear, PlainLinear
from dspark_worker.model.norms import RmsNorm
from dspark_worker.model.shard import Shard, open_shard
from dsparkctl.checkpoint.errors import CheckpointError, wrong
from dsparkctl.checkpoint.exl3_places import Exl3Weight
from dsparkctl.checkpoint.files import CheckpointFiles
from dsparkctl.checkpoint.inspection import Format, Row, inspect
from dsparkctl.checkpoint.model_config import ModelConfig


class Weights:
    """One open checkpoint; use it inside `open_weights`."""

    def __init__(
        self,
        rows: dict[str, Row],
        shards: Mapping[Path, Shard],
        device: torch.device,
        dtype: torch.dtype,
        norm_eps: float,
        exl3_places: Mapping[str, Exl3Weight] = MappingProxyType({}),
        cache: DecodedCache | None = None,
    ) -> None:
        """Without a `cache`, EXL3 layers are decoded at every use."""
        self.device = device
        self.dtype = dtype
        self._rows = rows
        self._files = {name: row.file for name, row in rows.items()}
        self._shards = shards
        self._norm_eps = norm_eps
        cache = cache or DecodedCache(0, torch.float32, device)
        self._exl3_places = exl3_places
        self.exl3 = Exl3Weights(exl3_places, self._take_here, self._refuse, device, cache)

    def matrix(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """Take a weight, unpacked, in the compute dtype (or another) on the device."""
        if name in self.exl3:
            with self._reading_exl3(name):
                return self.exl3.dense(name).to(dtype or self.dtype)
        row = self._rows[name]
        scale_name = name.removesuffix(".weight") + ".scale"
        with _reading(row.file, name):
            if row.format is Format.FP8:
                unpacked = fp8_tiles(self._take(name), self._take(scale_name))
            elif row.format is Format.FP4:
                unpacked = fp4_packed(self._take(name), self._take(scale_name))
            else:
                unpacked = self._take(name)
            loaded = unpacked.to(dtype or self.dtype).contiguous()
        if not loaded.isfinite().all():
            raise wrong(row.file, "holds values that are not finite", at=name)
        return loaded

    def fp32(self, name: str) -> Tensor:
        """Take a tensor that the reference uses in fp32."""
        return self.matrix(name, torch.float32)

    def linear(self, prefix: str, dtype: torch.dtype | None = None) -> Linear:
        """Take the linear layer `prefix`, whatever its format; plain ones in the compute dtype (or
        another), which is then that of its inputs."""
        name = f"{prefix}.weight"
        if name not in self.exl3:
            return PlainLinear(self.matrix(name, dtype))
        with self._reading_exl3(name):
            return self.exl3.linear(name)

    def grouped_linear(self, prefix: str, n_groups: int) -> Linear:
        """Take a layer whose rows are `n_groups` blocks, one for each group of inputs.

        [t, G, in] -> [t, G, out]
        """
        name = f"{prefix}.weight"
        if name in self.exl3:
            with self._reading_exl3(name):
                groups = self.exl3.grouped(name, n_groups)
            if groups is not None:
                return groups
        weight = self.matrix(name)
        return GroupedLinear(weight.view(n_groups, -1, weight.shape[1]))

    def norm(self, prefix: str) -> RmsNorm:
        return RmsNorm(self.fp32(f"{prefix}.weight"), self._norm_eps)

    def finish(self) -> None:
        """Assert that every tensor was taken: a model that forgot one drafts plausible nonsense."""
        forgotten = sorted(self._rows)
        assert not forgotten, f"the model takes no notice of {forgotten[:3]}"

    def _reading_exl3(self, name: str) -> AbstractContextManager[None]:
        layer = self._exl3_places[name].parts[0].layer
        return _reading(self._files[layer.name("trellis")], layer.name("trellis"))

    def _refuse(self, name: str, what: str) -> CheckpointError:
        return wrong(self._files[name], what, at=name)

    def _take_here(self, name: str) -> Tensor:
        """As it lies in the file, on the CPU."""
        return self._shards[self._rows.pop(name).file].take(name)

    def _take(self, name: str) -> Tensor:
        return self._take_here(name).to(self.device)


@contextmanager
def open_weights(
    files: CheckpointFiles,
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    cache: DecodedCache,
) -> Iterator[Weights]:
    """Open a checkpoint that is in order; `CheckpointError` names file and tensor that are not.

    Layers that stay packed decode into `cache`.
    """
    inspection = inspect(files, config)
    for problem in inspection.problems:
        raise problem.error()
    with ExitStack() as stack:
        shards = {path: stack.enter_context(open_shard(path)) for path in files.shards}
        rows = {r.name: r for r in inspection.rows if r.format is not Format.IGNORED}
        exl3 = inspection.exl3_weights
        yield Weights(rows, shards, device, dtype, config.norm_eps, exl3, cache)


@contextmanager
def _reading(file: Path, name: str) -> Iterator[None]:
    """Memory that runs out, in whatever way it is said, in one line."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else "out of memory"
        raise wrong(file, f"cannot be held in memory ({reason})", at=name) from None
