"""`python -m dspark_worker dequantize|convert`: weights unpacked into a file or a folder.

Both stand behind `dsparkctl checkpoint`, whose side never reaches torch. Decides what is said and
which numbers a person may ask for; the model's rooms do the work.
"""

import argparse
import sys
from pathlib import Path

from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.checkpoint.files import SETTINGS
from dsparkctl.config.errors import InTheWay
from dsparkctl.exits import Exit

TO = {"bf16": "BF16", "f32": "F32"}


def add_dequantize_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="a safetensors file")
    parser.add_argument("key", metavar="KEY", help="a layer's name, as inspect lists it")
    parser.add_argument("--out", type=Path, required=True, metavar="OUT.safetensors")
    parser.add_argument("--force", action="store_true", help="replace OUT where it exists")
    parser.add_argument("--inner", action="store_true", help="the decoded trellis by itself, fp16")


def add_convert_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, metavar="DIR", help="the checkpoint's folder")
    parser.add_argument("out", type=Path, metavar="OUT", help="a new or empty folder")
    parser.add_argument("--to", choices=tuple(TO), required=True, help="dtype of packed weights")


def dequantize(given: argparse.Namespace) -> int:
    try:
        from dspark_worker.model.exl3.export import dequantized
        from dspark_worker.model.shard_writer import DTYPES, Planned, write_shard
    except ImportError as error:
        raise _needs(error) from error
    if given.out.is_file() and not given.force:
        raise InTheWay(f"{given.out}: exists already; --force replaces it")
    if given.out.is_file() and _is_of_a_checkpoint(given.out.resolve(), given.file.resolve()):
        raise InTheWay(f"{given.out}: belongs to a checkpoint; choose another --out")
    words = {dtype: word for word, dtype in DTYPES.items()}
    found = dequantized(given.file, given.key.removesuffix(".trellis"), inner=given.inner)
    plan = [Planned(name, words[t.dtype], tuple(t.shape)) for name, t in found.items()]
    write_shard(given.out, plan, found.values(), replace=given.force)
    for planned in plan:
        shape = "x".join(map(str, planned.shape))
        sys.stderr.write(f"{given.out}: {planned.name} {planned.dtype} {shape}\n")
    return Exit.OK


def _is_of_a_checkpoint(out: Path, source: Path) -> bool:
    """What nobody means by --force: the input itself, or a shard beside a checkpoint's settings."""
    return out == source or any((out.parent / name).exists() for name in SETTINGS)


def convert(given: argparse.Namespace) -> int:
    try:
        from dspark_worker.model.dense_copy import write_dense_copy
    except ImportError as error:
        raise _needs(error) from error
    n_bytes = write_dense_copy(given.directory, given.out, TO[given.to])
    sys.stderr.write(f"{given.out}: {n_bytes} bytes of weights\n")
    return Exit.OK


def _needs(error: ImportError) -> CheckpointError:
    return CheckpointError(f"this needs {error.name}: pip install 'dsparkctl[worker]'")
