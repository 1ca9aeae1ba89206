"""The parsers that read what a peer or a file says, each as a function of bytes.

Decides what each may do with any bytes: give a value, or raise the one exception that its callers
expect. Where there is a way back, the value must survive it. Anything else (another exception, a
hang, growth) is a finding.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.checkpoint.exl3 import examine
from dsparkctl.checkpoint.files import find_files
from dsparkctl.checkpoint.hash_cache import parse_cache
from dsparkctl.checkpoint.header import read_header
from dsparkctl.checkpoint.markov_tokens import parse_markov_tokens
from dsparkctl.checkpoint.model_config import read_model_config
from dsparkctl.cli.trend import StatsError, parse_stats
from dsparkctl.config.errors import ConfigError
from dsparkctl.config.source import parse_fleet
from dsparkctl.config.template import template
from dsparkctl.contract.codes import NEED_DRAFT
from dsparkctl.contract.endpoint import EndpointError, parse_endpoint
from dsparkctl.contract.errors import WireError
from dsparkctl.contract.framing import HEADER_BYTES, message_bytes
from dsparkctl.contract.jsonform import Direction, decode, encode
from dsparkctl.contract.jsonrecord import FormError
from dsparkctl.contract.layout import pack
from dsparkctl.contract.messages import (
    Limits,
    parse_header,
    parse_hello,
    parse_step,
    parse_step_reply,
    step_head,
)
from dsparkctl.contract.receipt import ReceiptError, parse_receipt, render_receipt
from dsparkctl.contract.records import ReqEntry
from dsparkctl.state.reply import Asked, refusal

GOLDEN = Path(__file__).parents[1] / "golden"
_LIMITS = Limits(4, 32, 64)
_FILE = Path(tempfile.gettempdir()) / f"dspark-fuzz-{os.getpid()}"
_NOTHING = Path("input")


class Target(NamedTuple):
    """One parser."""

    run: Callable[[bytes], None]
    expected: tuple[type[Exception], ...]
    """What it may raise."""
    seeds: Callable[[], Iterator[bytes]]
    """Good inputs to begin with."""

    def __call__(self, data: bytes) -> None:
        with contextlib.suppress(*self.expected):
            self.run(data)


# --- messages -------------------------------------------------------------------------------------


def _frame(data: bytes) -> None:
    n_bytes = message_bytes(data.ljust(4, b"\0"))
    header = parse_header(data[4:])
    assert len(data) - 4 == HEADER_BYTES + header.body_len
    assert n_bytes >= HEADER_BYTES


def _hello(data: bytes) -> None:
    hello = parse_hello(data)
    # The name is NUL-padded, so that only what stands before the padding is said twice.
    assert pack(hello)[: len(data) - 48] == data[:-48]


def _step(data: bytes) -> None:
    step = parse_step(memoryview(data), _LIMITS)
    assert len(step.rows) == step.head.n_rows * _LIMITS.row_bytes
    assert sum(entry.n_rows for entry in step.entries) == step.head.n_rows
    assert len({entry.slot for entry in step.entries}) == step.head.n_req


def _reply(data: bytes) -> None:
    reply = parse_step_reply(data)
    n = reply.head.n_req * reply.head.num_spec
    assert len(reply.draft_ids) == len(reply.confidence) == n
    refusal(reply, Asked(1, [], reply.head.num_spec, 8, 160))


def _wire(data: bytes) -> None:
    """A message as JSON, and that JSON as the same message, where it says everything."""
    for direction in (None, *Direction):
        with contextlib.suppress(WireError):
            form = decode(data, direction)
            json.dumps(form, allow_nan=True)
    form = decode(data)
    if not form.get("problems"):
        with contextlib.suppress(FormError):
            encode(form)


def _wire_seeds() -> Iterator[bytes]:
    for message in json.loads((GOLDEN / "wire" / "messages.json").read_text()):
        yield bytes.fromhex(message.get("tcp_length_prefix") or "") + bytes.fromhex(message["hex"])


def _bodies() -> Iterator[bytes]:
    for message in json.loads((GOLDEN / "wire" / "messages.json").read_text()):
        yield bytes.fromhex(message["hex"])[HEADER_BYTES:]


def _steps() -> Iterator[bytes]:
    """STEPs that fit the limits above."""
    for n_rows in ([1], [2, 0], [3, 1, 8, 0]):
        entries = [
            ReqEntry(slot, NEED_DRAFT, 0, 0, 1, 5, n, 1, 5 + n) for slot, n in enumerate(n_rows)
        ]
        head = step_head(
            seq=1, session=1, step_id=1, step_flags=0, row_bytes=_LIMITS.row_bytes, entries=entries
        )
        yield (head + bytes(sum(n_rows) * _LIMITS.row_bytes))[HEADER_BYTES:]
    yield from _bodies()


# --- files ----------------------------------------------------------------------------------------


def _receipt(data: bytes) -> None:
    found = parse_receipt(data)
    assert parse_receipt(render_receipt(found)).files == found.files


def _receipt_seeds() -> Iterator[bytes]:
    yield b'{"files":[{"path":"a/config.json","sha256":"' + b"ab" * 32 + b'","size":3}],'
    yield (
        b'{"files":[{"name":"config.json","sha256":"' + b"ab" * 32 + b'","bytes":3}],'
        b'"extracted_files":[{"file":"m.safetensors","sha256":"' + b"cd" * 32 + b'"}],"more":1}'
    )


def _fleet(data: bytes) -> None:
    parse_fleet(data, Path("dspark.yaml"))


def _fleet_seeds() -> Iterator[bytes]:
    yield template()
    yield b"version: 1\nworker:\n  checkpoint: /c\n  receipt: /r\n  admin: [tcp://127.0.0.1:1]\n"


def _safetensors(data: bytes) -> None:
    """A header, and every EXL3 layer that it could hold."""
    _FILE.write_bytes(data)
    found = read_header(_FILE)
    prefixes = {name.rpartition(".")[0] for name in found}
    for prefix in sorted(prefixes):
        parts = {
            name.rpartition(".")[2]: info
            for name, info in found.items()
            if name.rpartition(".")[0] == prefix
        }
        layer, faults = examine(prefix, parts)
        assert (layer is None) == bool(faults)


def _safetensors_seeds() -> Iterator[bytes]:
    for name in ("mul1_k2p5_128x128", "mcg_k4_256x128_bias_zero_col"):
        data = (GOLDEN / "exl3" / f"{name}.safetensors").read_bytes()
        n_header = int.from_bytes(data[:8], "little")
        yield data[: 8 + n_header]
    entry = b'{"w":{"dtype":"F16","shape":[1,1],"data_offsets":[0,2]}}'
    yield len(entry).to_bytes(8, "little") + entry + b"\0\0"


def _markov(data: bytes) -> None:
    tokens = parse_markov_tokens(data, _NOTHING, 1000)
    assert all(0 <= token < 1000 for token in tokens)


def _markov_seeds() -> Iterator[bytes]:
    yield b"[1,2,3]"
    yield b'{"1":[2,3],"2":[5]}'
    yield b'{"tokens":[1,2,3],"top_k":3}'


def _model_config(data: bytes) -> None:
    folder = _FILE.with_suffix(".d")
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "config.json").write_bytes(data)
    read_model_config(find_files(folder))


def _model_config_seeds() -> Iterator[bytes]:
    yield (GOLDEN / "drafter" / "a" / "config.json").read_bytes()


def _cache(data: bytes) -> None:
    parse_cache(data)


def _cache_seeds() -> Iterator[bytes]:
    yield b'{"version":1,"files":{"/a":{"size":1,"mtime_ns":2,"inode":3,"sha256":"' + b"0" * 64
    yield b'{"version":1,"files":{}}'


def _stats(data: bytes) -> None:
    parse_stats(data)


def _stats_seeds() -> Iterator[bytes]:
    yield b'{"steps":3,"acceptance_per_position":[0.5,null],"slots":[{"slot":0}]}'


def _endpoint(data: bytes) -> None:
    text = data.decode("latin-1")
    found = parse_endpoint(text)
    assert parse_endpoint(str(found)) == found


def _endpoint_seeds() -> Iterator[bytes]:
    yield b"tcp://10.202.28.1:18620?bind=10.202.28.2"
    yield b"o1rdma://[fe80::1]:1"


TARGETS = {
    "frame": Target(_frame, (WireError,), _wire_seeds),
    "hello": Target(_hello, (WireError,), _bodies),
    "step": Target(_step, (WireError,), _steps),
    "reply": Target(_reply, (WireError,), _bodies),
    "wire": Target(_wire, (WireError,), _wire_seeds),
    "receipt": Target(_receipt, (ReceiptError,), _receipt_seeds),
    "fleet": Target(_fleet, (ConfigError,), _fleet_seeds),
    "safetensors": Target(_safetensors, (CheckpointError,), _safetensors_seeds),
    "markov": Target(_markov, (CheckpointError,), _markov_seeds),
    "model_config": Target(_model_config, (CheckpointError,), _model_config_seeds),
    "hash_cache": Target(_cache, (ValueError,), _cache_seeds),
    "stats": Target(_stats, (StatsError,), _stats_seeds),
    "endpoint": Target(_endpoint, (EndpointError,), _endpoint_seeds),
}
