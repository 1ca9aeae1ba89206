"""`python -m dspark_worker dequantize|convert`: weights unpacked into a file or a folder.

Both stand behind `dsparkctl checkpoint`, whose side never reaches torch. Decides what is said and
which numbers a person may ask for; the model's rooms do the work.
"""

import argparse
import sys
from pathlib import Path

from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.config.errors import WriteError
from dsparkctl.exits import Exit

TO = {"bf16": "BF16", "f32": "F32"}


def add_dequantize_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="a safetensors file")
    parser.add_argument("key", metavar="KEY", help="a layer's prefix, without .trellis")
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
        raise WriteError(f"{given.out}: exists already; --force replaces it")
    words = {dtype: word for word, dtype in DTYPES.items()}
    found = dequantized(given.file, given.key, inner=given.inner)
    plan = [Planned(name, words[t.dtype], tuple(t.shape)) for name, t in found.items()]
    write_shard(given.out, plan, found.values(), replace=given.force)
    for planned in plan:
        shape = "x".join(map(str, planned.shape))
        sys.stderr.write(f"{given.out}: {planned.name} {planned.dtype} {shape}\n")
    return Exit.OK


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
