"""A checkpoint with every weight unpacked: what it drafts with, without its formats.

Decides the dtype of each tensor. Packed weights (EXL3, fp8, fp4) go to the one that was asked for;
those that are plain already only ever widen, since a narrower copy would be another model. The
configs come along without what they say about quantisation; a receipt does not, because the copy is
another set of files.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from dspark_worker.model.exl3.cache import DecodedCache
from dspark_worker.model.shard_writer import DTYPES, Planned, write_shard
from dspark_worker.model.weights import open_weights
from dspark_worker.provenance import prove
from dsparkctl.checkpoint.files import CheckpointFiles, find_files
from dsparkctl.checkpoint.inspection import Format, inspect
from dsparkctl.checkpoint.model_config import read_model_config
from dsparkctl.checkpoint.strict_json import read_json_object
from dsparkctl.checkpoint.tensors import expected_tensors
from dsparkctl.config.errors import InTheWay, WriteError
from dsparkctl.config.files import umask, write_whole

SHARD = "model.safetensors"
RECEIPT = "DSPARK_COPY_DONE"


def write_dense_copy(directory: Path, out: Path, to: str) -> int:
    """Write the copy to `out`, an empty or new folder; returns the bytes of its shard.

    `to` is BF16 or F32. One line when it cannot be, and `out` is then as it was: CheckpointError,
    WriteError, or IdentityMismatch when the folder's own receipt says otherwise.
    """
    files = find_files(directory)
    receipt = directory / RECEIPT
    proof = prove(files, receipt, None) if receipt.exists() else None
    config = read_model_config(files)
    found = inspect(files, config)
    stored = {row.name: row for row in found.rows if row.format is not Format.IGNORED}
    plan = []
    for expected in expected_tensors(config):
        row = stored.get(expected.name)
        if row is None and expected.optional:
            continue
        is_plain = row is not None and row.format is Format.PLAIN
        dtype = row.dtype if row is not None and is_plain and to != "F32" else to
        plan.append(Planned(expected.name, dtype, expected.shape))
    cpu = torch.device("cpu")
    cache = DecodedCache(0, torch.float32, cpu)
    with (
        _whole_folder(out, source=directory) as folder,
        open_weights(files, config, cpu, torch.float32, cache) as weights,
    ):

        def unpacked() -> Iterator[Tensor]:
            for planned in plan:
                yield weights.matrix(planned.name, DTYPES[planned.dtype])

        write_shard(folder / SHARD, plan, unpacked())
        weights.finish()
        if proof is not None:
            proof.check_unchanged()
        _write_configs(files, folder)
    return sum(planned.n_bytes for planned in plan)


@contextmanager
def _whole_folder(out: Path, *, source: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `out` when the block ends well and goes when it does not."""
    out = out.resolve()
    if out.is_relative_to(source.resolve()):
        raise InTheWay(f"{out}: lies in the checkpoint; a copy goes into a folder of its own")
    try:
        if out.exists() and any(out.iterdir()):
            raise InTheWay(f"{out}: is not empty; a copy goes into a folder of its own")
        folder = Path(tempfile.mkdtemp(prefix=".dspark.", dir=out.parent))
    except OSError as error:
        raise WriteError(f"{out}: cannot be written: {error.strerror}") from None
    try:
        yield folder
        folder.chmod(0o777 & ~umask())
        folder.replace(out)  # an empty folder may be replaced, a full one may not
    except OSError as error:
        raise WriteError(f"{out}: cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_configs(files: CheckpointFiles, out: Path) -> None:
    for path in (files.config, files.inference_config):
        if path is None:
            continue
        values = read_json_object(path)
        for place in (values, values.get("text_config")):
            if isinstance(place, dict):
                place.pop("quantization_config", None)
        write_whole(out / path.name, (json.dumps(values, indent=1) + "\n").encode())
