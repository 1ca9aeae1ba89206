"""Why a worker does not start: one line each, a code that tools know, and nothing listens."""

import hashlib
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dsparkctl.checkpoint.files import find_files
from dsparkctl.contract.endpoint import parse_endpoint
from tests.e2e.running import GOLDEN, WAIT_S, Client, running_worker

TENSOR = "mtp.0.main_proj.weight"


class Ended(NamedTuple):
    """How a `serve` that did not come up ended."""

    code: int
    out: str
    lines: list[str]
    """stderr without the lines of the log"""


def serve(*flags: str, cwd: Path | None = None) -> Ended:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "dspark_worker", "serve", *flags],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        cwd=cwd,
    )
    lines = [line for line in done.stderr.splitlines() if " INFO " not in line]
    return Ended(done.returncode, done.stdout, lines)


PORTS = ("--listen", "tcp://127.0.0.1:0", "--admin", "tcp://127.0.0.1:0")
SCRIPTED = ("--drafter", "scripted", *PORTS)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The golden checkpoint, to be spoilt."""
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    for source in find_files(GOLDEN).sources:
        shutil.copy(source, directory)
    return directory


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_receipt(directory: Path, change: Callable[[dict[str, Any]], None] | None = None) -> Path:
    listed = [
        {"path": f"src/{path.name}", "sha256": digest(path), "size": path.stat().st_size}
        for path in find_files(directory).sources
    ]
    receipt: dict[str, Any] = {"files": listed, "extracted_files": [dict(f) for f in listed]}
    if change is not None:
        change(receipt)
    path = directory / "DSPARK_COPY_DONE"
    path.write_text(json.dumps(receipt))
    return path


def assert_one_line(ended: Ended, code: int, *words: str) -> None:
    assert ended.code == code, ended
    assert ended.out == ""
    assert len(ended.lines) == 1, ended
    for word in words:
        assert word in ended.lines[0], ended


# --- addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "", "[::ffff:0.0.0.0]"])
@pytest.mark.parametrize("flag", ["--listen", "--admin"])
def test_a_wildcard_address_is_refused_unless_it_is_meant(host: str, flag: str) -> None:
    other = "--admin" if flag == "--listen" else "--listen"
    given = ("--checkpoint", str(GOLDEN), "--identity-from-files", flag, f"tcp://{host}:0")
    ended = serve(*given, other, "tcp://127.0.0.1:0")
    assert_one_line(ended, 2, flag, "--allow-any-address")


def test_a_wildcard_address_is_served_with_allow_any_address() -> None:
    flags = ("--drafter", "scripted", "--allow-any-address", "--admin", "tcp://0.0.0.0:0")
    with running_worker(*flags) as worker:
        assert worker.ready["admin"][1].startswith("tcp://0.0.0.0:")


@pytest.mark.parametrize("busy", ["--listen", "--admin"])
def test_a_port_in_use_is_one_line_before_anything_is_loaded(tmp_path: Path, busy: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        ports = {"--listen": "tcp://127.0.0.1:0", "--admin": "tcp://127.0.0.1:0", busy: url}
        ended = serve(
            "--checkpoint", str(tmp_path / "nothing"), "--identity-from-files",
            *(word for pair in ports.items() for word in pair),
        )  # fmt: skip
    assert_one_line(ended, 1, "cannot listen on", url, "in use")


def test_one_port_for_both_listeners_is_one_line() -> None:
    """Two names of one address cannot be told apart until they listen."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ended = serve(
        "--checkpoint", str(GOLDEN), "--identity-from-files", "--drafter", "scripted",
        "--listen", f"tcp://127.0.0.1:{port}", "--admin", f"tcp://localhost:{port}",
    )  # fmt: skip
    assert_one_line(ended, 1, "cannot listen on", str(port), "in use")


@pytest.mark.parametrize(
    "url", ["tcp://203.0.113.7:18620", "tcp://no-such-host.invalid:18620", "tcp://[fe80::1]:1"]
)
def test_an_address_that_is_not_this_machines_is_one_line(url: str) -> None:
    ended = serve(
        "--checkpoint", str(GOLDEN), "--identity-from-files", "--listen", url,
        "--admin", "tcp://127.0.0.1:0",
    )  # fmt: skip
    assert_one_line(ended, 1, "cannot listen on", url)


# --- receipts -------------------------------------------------------------------------------------


def test_without_a_receipt_it_refuses_and_says_what_would_do() -> None:
    ended = serve("--checkpoint", str(GOLDEN), *SCRIPTED)
    assert_one_line(ended, 2, "--receipt", "--identity-from-files")


def test_a_receipt_and_identity_from_files_at_once_are_refused(copy: Path) -> None:
    receipt = str(write_receipt(copy))
    ended = serve("--checkpoint", str(copy), "--receipt", receipt, "--identity-from-files")
    assert_one_line(ended, 2, "both")


def test_a_receipt_that_matches_is_served_under_its_own_identity(copy: Path) -> None:
    """The identity runs over `files`, the sources; what is loaded stands in `extracted_files`."""

    def other_source(receipt: dict[str, Any]) -> None:
        receipt["files"].append({"name": "model-00001.safetensors", "sha256": "ab" * 32})

    receipt = write_receipt(copy, other_source)
    lines = sorted(
        f"{f.get('path', f.get('name')).rpartition('/')[2]} {f['sha256']}\n"
        for f in json.loads(receipt.read_text())["files"]
    )
    given = [
        *(sys.executable, "-P", "-m", "dspark_worker", "serve", "--json", *SCRIPTED),
        *("--checkpoint", str(copy), "--receipt", str(receipt)),
    ]
    with subprocess.Popen(given, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        process.terminate()
    assert ready["drafter_identity"] == hashlib.sha256("".join(lines).encode()).hexdigest()


def test_a_receipt_without_extracted_files_is_refused(copy: Path) -> None:
    receipt = write_receipt(copy, lambda r: r["extracted_files"].clear())
    ended = serve("--checkpoint", str(copy), "--receipt", str(receipt), *SCRIPTED)
    assert_one_line(ended, 10, str(receipt), "extracted_files is empty")


def test_6_7_a_file_that_differs_from_its_receipt_is_10_with_both_digests(copy: Path) -> None:
    receipt = write_receipt(copy)
    shard = copy / "model.safetensors"
    before = digest(shard)
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    ended = serve("--checkpoint", str(copy), "--receipt", str(receipt), *SCRIPTED)
    assert_one_line(ended, 10, str(shard), before, digest(shard))


def test_6_7_a_file_that_the_receipt_does_not_list_is_10(copy: Path) -> None:
    def forget(receipt: dict[str, Any]) -> None:
        for name in ("files", "extracted_files"):
            receipt[name] = [f for f in receipt[name] if "model" not in f["path"]]

    receipt = write_receipt(copy, forget)
    ended = serve("--checkpoint", str(copy), "--receipt", str(receipt), *SCRIPTED)
    assert_one_line(ended, 10, str(receipt), "model.safetensors")


@pytest.mark.parametrize("text", ["", "[]", '{"files": []}', '{"files": [{"path": "x"}]}'])
def test_a_malformed_receipt_is_2_and_named(copy: Path, text: str) -> None:
    receipt = copy / "DSPARK_COPY_DONE"
    receipt.write_text(text)
    ended = serve("--checkpoint", str(copy), "--receipt", str(receipt), *SCRIPTED)
    assert_one_line(ended, 2, str(receipt))


@pytest.mark.parametrize("flag", ["--receipt", "--markov"])
def test_a_missing_file_is_2_and_named(tmp_path: Path, flag: str) -> None:
    missing = str(tmp_path / "nowhere")
    more = () if flag == "--receipt" else ("--identity-from-files",)
    ended = serve("--checkpoint", str(GOLDEN), flag, missing, *more, *SCRIPTED)
    assert_one_line(ended, 2, missing)


# --- checkpoints ----------------------------------------------------------------------------------


def rewrite_header(shard: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = shard.read_bytes()
    n = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + n])
    change(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    shard.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + n :])


def rename(header: dict[str, Any]) -> None:
    header["mtp.0.not_ours.weight"] = header.pop(TENSOR)


def reshape(header: dict[str, Any]) -> None:
    header[TENSOR]["shape"] = [header[TENSOR]["shape"][0] * header[TENSOR]["shape"][1], 1]


@pytest.mark.parametrize("change", [rename, reshape])
def test_a_missing_or_misshapen_tensor_is_one_line_naming_file_and_tensor(
    copy: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    rewrite_header(copy / "model.safetensors", change)
    ended = serve("--checkpoint", str(copy), "--identity-from-files", *PORTS)
    assert_one_line(ended, 1, str(copy), TENSOR)


def test_a_truncated_shard_is_one_line_naming_it(copy: Path) -> None:
    shard = copy / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1000])
    ended = serve("--checkpoint", str(copy), "--identity-from-files", *PORTS)
    assert_one_line(ended, 1, str(shard))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_garbage_in_a_file_is_one_line_naming_it(copy: Path, name: str) -> None:
    (copy / name).write_bytes(b"\xff\xfe not what you think")
    ended = serve("--checkpoint", str(copy), "--identity-from-files", *PORTS)
    assert_one_line(ended, 1, str(copy / name))


def test_no_checkpoint_at_all_is_one_line(tmp_path: Path) -> None:
    ended = serve("--checkpoint", str(tmp_path), "--identity-from-files", *PORTS)
    assert_one_line(ended, 1, str(tmp_path))


def test_nothing_listens_while_and_after_a_load_fails(copy: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    rewrite_header(copy / "model.safetensors", rename)
    ended = serve(
        "--checkpoint", str(copy), "--identity-from-files",
        "--listen", f"tcp://127.0.0.1:{port}", "--admin", "tcp://127.0.0.1:0",
    )  # fmt: skip
    assert ended.code == 1
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=1)


def test_a_device_that_is_not_there_is_one_line() -> None:
    given = ("--checkpoint", str(GOLDEN), "--identity-from-files", "--device", "cuda:99")
    ended = serve(*given, *PORTS)
    assert_one_line(ended, 1, "cuda:99")


# --- the configuration file -----------------------------------------------------------------------


def test_a_config_file_with_a_flag_that_wins(copy: Path) -> None:
    """Relative paths are meant from the file's folder."""
    config = copy.parent / "dspark.yaml"
    config.write_text(
        "version: 1\n"
        "worker:\n"
        "  checkpoint: checkpoint\n"
        "  identity_from_files: true\n"
        "  drafter: scripted\n"
        "  listen: tcp://192.0.2.1:1\n"
        "  admin: [tcp://127.0.0.1:0]\n"
        "  max_slots: 2\n"
    )
    given = [
        *(sys.executable, "-P", "-m", "dspark_worker", "serve", "--json"),
        *("--config", str(config), "--listen", "tcp://127.0.0.1:0"),
    ]
    with subprocess.Popen(given, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        with Client(parse_endpoint(ready["admin"][0])) as admin:
            stats = admin.stats()
        process.terminate()
    assert ready["listen"].startswith("tcp://127.0.0.1:")
    assert ready["backend"] == "scripted"
    assert len(stats["slots"]) == 2


def test_a_fault_in_the_config_file_names_file_line_and_key(tmp_path: Path) -> None:
    config = tmp_path / "dspark.yaml"
    config.write_text("version: 1\nworker:\n  checkpoint: x\n  max_slot: 3\n")
    ended = serve("--config", str(config))
    assert ended.code == 2
    assert any(f"{config}:4" in line and "max_slot" in line for line in ended.lines)


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("--max-slots", "0"), "--max-slots"),
        (("--max-slots", "33"), "--max-slots"),
        (("--max-slots", "four"), "--max-slots"),
        (("--max-model-len", "-1"), "--max-model-len"),
        (("--drafter", "gpt"), "--drafter"),
        (("--kv-quant", "fp3"), "--kv-quant"),
        (("--device", "tpu"), "--device"),
        (("--listen", "udp://127.0.0.1:1"), "--listen"),
        (("--no-such-flag",), "--no-such-flag"),
    ],
)
def test_a_flag_that_cannot_be_is_2_and_named(flags: tuple[str, ...], word: str) -> None:
    ended = serve("--checkpoint", str(GOLDEN), "--identity-from-files", *flags)
    assert (ended.code, ended.out) == (2, "")
    assert word in ended.lines[-1]
