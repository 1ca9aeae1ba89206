"""Whether the files that are loaded are those of the receipt, and both identities (§6.7)."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from dspark_worker import provenance
from dspark_worker.provenance import IdentityMismatch, prove
from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.checkpoint.files import CheckpointFiles, find_files
from dsparkctl.config.errors import ReadError
from dsparkctl.contract.receipt import ReceiptError

GOLDEN = Path(__file__).parents[2] / "golden" / "drafter" / "a"


@pytest.fixture
def files(tmp_path: Path) -> CheckpointFiles:
    for source in find_files(GOLDEN).sources:
        shutil.copy(source, tmp_path)
    return find_files(tmp_path)


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def digest_of(pairs: dict[str, str]) -> bytes:
    """§6.7 in other words."""
    text = "".join(f"{name} {pairs[name]}\n" for name in sorted(pairs))
    return hashlib.sha256(text.encode()).digest()


def receipt(of: CheckpointFiles, /, **changed: Any) -> Path:
    listed = [{"name": path.name, "sha256": sha(path)} for path in of.sources]
    path = of.directory / "DSPARK_COPY_DONE"
    path.write_text(json.dumps({"files": listed, "extracted_files": listed} | changed))
    return path


def test_without_a_receipt_the_files_themselves_are_the_identity(files: CheckpointFiles) -> None:
    expected = digest_of({path.name: sha(path) for path in files.sources})
    proof = prove(files, None, None)
    assert (proof.drafter, proof.markov) == (expected, bytes(32))


def test_a_file_beside_the_checkpoint_changes_nothing(files: CheckpointFiles) -> None:
    before = prove(files, None, None).drafter
    (files.directory / "README.md").write_text("hello")
    assert prove(find_files(files.directory), None, None).drafter == before


def test_the_identity_of_a_receipt_runs_over_its_sources_alone(files: CheckpointFiles) -> None:
    source = {"path": "/src/model-00002.safetensors", "sha256": "AB" * 32}
    found = prove(files, receipt(files, files=[source]), None)
    assert found.drafter == digest_of({"model-00002.safetensors": "ab" * 32})


def test_the_markov_identity_is_that_of_the_files_bytes(
    files: CheckpointFiles, tmp_path: Path
) -> None:
    markov = tmp_path / "markov_top_tokens.json"
    markov.write_bytes(b"[1, 2]\n")
    assert prove(files, None, markov).markov == hashlib.sha256(b"[1, 2]\n").digest()


def test_a_markov_file_beyond_its_bound_is_not_read(
    files: CheckpointFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "MAX_MARKOV_BYTES", 3)
    markov = tmp_path / "markov_top_tokens.json"
    markov.write_bytes(b"1234")
    with pytest.raises(ReadError, match=str(markov)):
        prove(files, None, markov)


def test_a_receipt_without_extracted_files_is_no_proof(files: CheckpointFiles) -> None:
    with pytest.raises(IdentityMismatch, match="extracted_files is empty"):
        prove(files, receipt(files, extracted_files=[]), None)


def test_every_differing_file_is_named_with_both_digests(files: CheckpointFiles) -> None:
    path = receipt(files)
    before = {source: sha(source) for source in files.sources}
    for source in files.sources[1:]:
        data = bytearray(source.read_bytes())
        data[-1] ^= 1
        source.write_bytes(data)
    with pytest.raises(IdentityMismatch) as caught:
        prove(files, path, None)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(files.sources) - 1
    for line, source in zip(lines, files.sources[1:], strict=True):
        assert line.startswith(f"{source}: ")
        assert before[source] in line
        assert sha(source) in line


def test_a_file_that_is_read_but_not_listed_is_named(files: CheckpointFiles) -> None:
    one = {"name": "model.safetensors", "sha256": sha(files.directory / "model.safetensors")}
    with pytest.raises(
        IdentityMismatch, match=r"does not list config\.json, inference_config\.json"
    ):
        prove(files, receipt(files, files=[one], extracted_files=[one]), None)


def test_what_was_extracted_counts_where_both_lists_name_a_file(files: CheckpointFiles) -> None:
    """The source of the same name may be another file: loading compares the extracted one."""
    other = [{"name": path.name, "sha256": "cd" * 32} for path in files.sources]
    found = prove(files, receipt(files, files=other), None)
    assert found.drafter == digest_of({path.name: "cd" * 32 for path in files.sources})


def test_a_malformed_receipt_is_named(files: CheckpointFiles) -> None:
    path = files.directory / "DSPARK_COPY_DONE"
    path.write_text("{")
    with pytest.raises(ReceiptError, match=str(path)):
        prove(files, path, None)


def settle(files: CheckpointFiles) -> None:
    """As if nobody had touched the files for long."""
    for source in files.sources:
        os.utime(source, ns=(10**18, 10**18))


def test_a_restart_reads_no_file_again(
    files: CheckpointFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    settle(files)
    path, cache = receipt(files), tmp_path / "cache" / "hashes.json"
    first = prove(files, path, None, cache_path=cache)
    again = prove(files, path, None, cache_path=cache)
    assert again == first
    n = len(files.sources)
    assert f"hashed 0.0 MB in 0.0 s; {n} of {n} files were known" in caplog.text


def test_rehash_believes_no_cache(files: CheckpointFiles, tmp_path: Path) -> None:
    """A file that was changed and given its old size, mtime and inode deceives the cache alone."""
    settle(files)
    path, cache = receipt(files), tmp_path / "cache" / "hashes.json"
    prove(files, path, None, cache_path=cache)
    victim = files.shards[0]
    with victim.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    settle(files)
    prove(files, path, None, cache_path=cache)
    with pytest.raises(IdentityMismatch, match=f"{victim}: sha256 is {sha(victim)}"):
        prove(files, path, None, cache_path=cache, rehash=True)
    with pytest.raises(IdentityMismatch, match=str(victim)):
        prove(files, path, None, cache_path=cache)  # what rehash found out is kept


def test_a_cached_digest_is_held_against_the_receipt_like_a_fresh_one(
    files: CheckpointFiles, tmp_path: Path
) -> None:
    settle(files)
    cache = tmp_path / "cache" / "hashes.json"
    prove(files, None, None, cache_path=cache)
    wrong = [{"name": path.name, "sha256": "ef" * 32} for path in files.sources]
    with pytest.raises(IdentityMismatch) as caught:
        prove(files, receipt(files, extracted_files=wrong), None, cache_path=cache)
    for source in files.sources:
        assert f"sha256 is {sha(source)}, the receipt says {'ef' * 32}" in str(caught.value)


def test_a_wrong_memory_of_the_cache_is_never_told_as_the_files_own_digest(
    files: CheckpointFiles, tmp_path: Path
) -> None:
    settle(files)
    path, cache = receipt(files), tmp_path / "cache" / "hashes.json"
    first = prove(files, path, None, cache_path=cache)
    cache.write_text(cache.read_text().replace(sha(files.shards[0]), "ab" * 32))
    assert prove(files, path, None, cache_path=cache) == first
    assert "ab" * 32 not in cache.read_text()


def test_a_pipe_in_the_markov_files_place_holds_no_start(
    files: CheckpointFiles, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(CheckpointError, match=f"{pipe}: not a regular file"):
        prove(files, None, pipe)


def test_a_file_of_another_size_is_named_with_both_digests_too(files: CheckpointFiles) -> None:
    listed = [
        {"name": path.name, "sha256": sha(path), "size": path.stat().st_size}
        for path in files.sources
    ]
    path = receipt(files, extracted_files=listed)
    victim = files.shards[0]
    before = sha(victim)
    victim.write_bytes(victim.read_bytes()[:-1])
    with pytest.raises(IdentityMismatch) as caught:
        prove(files, path, None)
    assert str(caught.value).startswith(f"{victim}: truncated: ")
    assert before in str(caught.value)
    assert sha(victim) in str(caught.value)


def test_a_shard_that_the_receipt_lists_must_be_there(files: CheckpointFiles) -> None:
    listed = [{"name": path.name, "sha256": sha(path)} for path in files.sources]
    gone = {"name": "model-exl3-head.safetensors", "sha256": "ab" * 32}
    other = {"name": "tokenizer.json", "sha256": "ab" * 32}
    prove(files, receipt(files, extracted_files=[*listed, other]), None)
    with pytest.raises(IdentityMismatch, match=r"model-exl3-head\.safetensors: is missing"):
        prove(files, receipt(files, extracted_files=[*listed, gone]), None)


@pytest.mark.parametrize("change", ["size", "mtime", "inode", "gone"])
def test_a_file_that_changes_after_it_was_hashed_stops_the_load(
    files: CheckpointFiles, change: str
) -> None:
    settle(files)
    proof = prove(files, None, None)
    proof.check_unchanged()
    victim = files.shards[0]
    before = sha(victim)
    if change == "size":
        victim.write_bytes(victim.read_bytes() + b"x")
    elif change == "mtime":
        victim.write_bytes(victim.read_bytes()[::-1])
    elif change == "inode":
        copy = victim.with_name("copy")
        shutil.copy2(victim, copy)
        copy.replace(victim)
    else:
        victim.unlink()
    with pytest.raises(IdentityMismatch) as caught:
        proof.check_unchanged()
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{victim}: ")
    assert before in line
    if change != "gone":
        assert sha(victim) in line
        assert ("its bytes are the same again" in line) == (sha(victim) == before)
        assert "changed after it was hashed" in line
