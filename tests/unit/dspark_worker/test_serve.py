"""The order of a start, seen from inside: nothing listens before a self-test came out right."""

import hashlib
import json
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from dspark_worker import serve as serve_module
from dspark_worker.choice import Chosen, choose_drafter
from dspark_worker.data_link import TcpListener
from dspark_worker.model.shard import Shard
from dspark_worker.provenance import IdentityMismatch
from dspark_worker.serve import LoadError, serve
from dspark_worker.sockets import ListenError
from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.checkpoint.files import find_files
from dsparkctl.config.worker import WorkerSettings
from tests.unit.dspark_worker.fake import OWN, FakeDrafter

GOLDEN = Path(__file__).parents[2] / "golden" / "drafter" / "a"


def settings(**given: Any) -> WorkerSettings:
    known: dict[str, Any] = {
        "checkpoint": GOLDEN,
        "identity_from_files": True,
        "drafter": "scripted",
        "listen": "tcp://127.0.0.1:0",
        "admin": ("tcp://127.0.0.1:0",),
    }
    return WorkerSettings(**(known | given))


def test_a_self_test_that_fails_is_a_load_error_and_nothing_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drafter = FakeDrafter()
    drafter.draft_faults = {4}
    chosen = Chosen(drafter, "cpu", "none", "none", lambda: 0)
    monkeypatch.setattr(serve_module, "_load", lambda _: (OWN._replace(max_slots=4), chosen))

    def never(_: object) -> None:
        raise AssertionError("it listens")

    monkeypatch.setattr(serve_module, "listening", never)
    with pytest.raises(LoadError, match=f"{GOLDEN}: self-test draft failed: .*draft fault"):
        serve(settings(), ready_as_json=True)


def test_a_busy_address_is_found_out_before_the_checkpoint_is_touched(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ListenError):
            serve(settings(listen=url, checkpoint=tmp_path / "nothing"), ready_as_json=True)


def test_a_message_that_the_machine_cannot_hold_is_a_load_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_memory(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(TcpListener, "prepare", no_memory)
    with pytest.raises(LoadError, match=r"no memory for messages of \d+ bytes.*max-rows-per-step"):
        serve(settings(), ready_as_json=True)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, 16 << 20),  # §5, R33: never less
        ({"row_bytes": 30720, "max_slots": 4, "max_rows_per_step": 512}, 16 << 20),
        (
            {"row_bytes": 30720, "window": 250, "max_slots": 4, "max_rows_per_step": 1000},
            32 + 192 + 1000 * 30720,
        ),
        # No STEP brings more rows than the windows hold, whatever the limit says.
        ({"row_bytes": 30720, "max_rows_per_step": 0xFFFFFFFF}, 16 << 20),
        # A length is a u32.
        ({"row_bytes": 1 << 20, "window": 65535, "max_rows_per_step": 1 << 31}, 0xFFFFFFFF),
    ],
)
def test_r33_the_longest_message_is_that_of_hello_or_16_mib(
    changed: dict[str, Any], expected: int
) -> None:
    assert serve_module._max_message_bytes(OWN._replace(**changed)) == expected


def copied(folder: Path) -> Path:
    for source in find_files(GOLDEN).sources:
        shutil.copyfile(source, folder / source.name)
        os.utime(folder / source.name, ns=(10**18, 10**18))
    return folder


def test_6_7_a_file_that_changes_while_it_is_loaded_stops_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = settings(checkpoint=copied(tmp_path), hash_cache=tmp_path / "hashes.json")
    choose = choose_drafter

    def meanwhile(*args: Any) -> Chosen:
        (tmp_path / "model.safetensors").touch()
        return choose(*args)

    serve_module._load(given)
    monkeypatch.setattr(serve_module, "choose_drafter", meanwhile)
    with pytest.raises(IdentityMismatch, match=r"model\.safetensors: changed after it was hashed"):
        serve_module._load(given)


@pytest.mark.parametrize("change", ["grown", "cut", "gone"])
def test_6_7_a_change_that_the_loader_trips_over_is_told_as_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Exit code 10 with what it was, not the loader's word for what it found."""
    given = settings(checkpoint=copied(tmp_path), hash_cache=tmp_path / "hashes.json")
    shard = tmp_path / "model.safetensors"
    choose = choose_drafter

    def meanwhile(*args: Any) -> Chosen:
        data = shard.read_bytes()
        match change:
            case "grown":
                shard.write_bytes(data + b"x")
            case "cut":
                shard.write_bytes(data[:-1])
            case "gone":
                shard.unlink()
        return choose(*args)

    monkeypatch.setattr(serve_module, "choose_drafter", meanwhile)
    with pytest.raises(IdentityMismatch, match=r"model\.safetensors: .*hashed"):
        serve_module._load(given)


@pytest.mark.parametrize("nth", [1, 5, 20])
def test_6_7_a_shard_that_is_cut_between_two_of_its_tensors_is_told_as_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """EXL3 specification §10: one that is mapped would end the process by SIGBUS here."""
    given = settings(
        checkpoint=copied(tmp_path), hash_cache=tmp_path / "hashes.json", drafter="torch"
    )
    shard, n_taken, take = tmp_path / "model.safetensors", 0, Shard.take

    def meanwhile(self: Shard, name: str) -> Tensor:
        nonlocal n_taken
        n_taken += 1
        if n_taken == nth:
            os.truncate(shard, shard.stat().st_size // 3)
        return take(self, name)

    monkeypatch.setattr(Shard, "take", meanwhile)
    with pytest.raises(IdentityMismatch, match=r"model\.safetensors: changed after it was hashed"):
        serve_module._load(given)
    assert n_taken >= nth


def test_6_7_nothing_of_the_checkpoint_is_read_before_it_is_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its config neither: what it says is believed once its digest is right."""
    copied(tmp_path)
    (tmp_path / "config.json").write_text("{")
    receipt = tmp_path / "DSPARK_COPY_DONE"
    listed = [{"name": p.name, "sha256": "ab" * 32} for p in find_files(tmp_path).sources]
    receipt.write_text(json.dumps({"files": listed, "extracted_files": listed}))
    given = settings(checkpoint=tmp_path, receipt=receipt, identity_from_files=False)
    with pytest.raises(IdentityMismatch, match=r"config\.json: sha256 is"):
        serve_module._load(given)


def test_stats_state_the_memory_of_the_markov_cache(tmp_path: Path) -> None:
    """§10 of the specification; without a cache, or with `--no-markov-cache`, it is 0."""
    markov = tmp_path / "markov_top_tokens.json"
    markov.write_text("[1, 2, 3]")
    for wanted, rows in ((True, 3), (False, 0)):
        own, chosen = serve_module._load(
            settings(drafter="torch", markov=markov, markov_cache=wanted)
        )
        assert own.markov_identity == hashlib.sha256(b"[1, 2, 3]").digest()
        said = serve_module._about(chosen)
        assert said["markov_cache_rows"] == rows
        assert said["markov_cache_bytes"] == (rows and 4 * (rows + 1) * own.vocab_size)


def test_a_markov_file_that_is_none_stops_the_start_unless_no_cache_is_made_of_it(
    tmp_path: Path,
) -> None:
    """The identity runs over the bytes, whatever they hold (§6.7)."""
    markov = tmp_path / "markov_top_tokens.json"
    markov.write_text('["the"]')
    with pytest.raises(CheckpointError, match=r"markov_top_tokens\.json: \[0\]: 'the'"):
        serve_module._load(settings(drafter="torch", markov=markov))
    own, _ = serve_module._load(settings(drafter="torch", markov=markov, markov_cache=False))
    assert own.markov_identity == hashlib.sha256(b'["the"]').digest()
