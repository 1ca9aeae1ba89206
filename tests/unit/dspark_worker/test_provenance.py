"""Whether the files that are loaded are those of the receipt, and both identities (§6.7)."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dspark_worker import provenance
from dspark_worker.provenance import Identities, IdentityMismatch, identities
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
    assert identities(files, None, None) == Identities(expected, bytes(32))


def test_a_file_beside_the_checkpoint_changes_nothing(files: CheckpointFiles) -> None:
    before = identities(files, None, None)
    (files.directory / "README.md").write_text("hello")
    assert identities(find_files(files.directory), None, None) == before


def test_the_identity_of_a_receipt_runs_over_its_sources_alone(files: CheckpointFiles) -> None:
    source = {"path": "/src/model-00002.safetensors", "sha256": "AB" * 32}
    found = identities(files, receipt(files, files=[source]), None)
    assert found.drafter == digest_of({"model-00002.safetensors": "ab" * 32})


def test_the_markov_identity_is_that_of_the_files_bytes(
    files: CheckpointFiles, tmp_path: Path
) -> None:
    markov = tmp_path / "markov_top_tokens.json"
    markov.write_bytes(b"[1, 2]\n")
    assert identities(files, None, markov).markov == hashlib.sha256(b"[1, 2]\n").digest()


def test_a_markov_file_beyond_its_bound_is_not_read(
    files: CheckpointFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "MAX_MARKOV_BYTES", 3)
    markov = tmp_path / "markov_top_tokens.json"
    markov.write_bytes(b"1234")
    with pytest.raises(ReadError, match=str(markov)):
        identities(files, None, markov)


def test_a_receipt_without_extracted_files_is_no_proof(files: CheckpointFiles) -> None:
    with pytest.raises(IdentityMismatch, match="extracted_files is empty"):
        identities(files, receipt(files, extracted_files=[]), None)


def test_every_differing_file_is_named_with_both_digests(files: CheckpointFiles) -> None:
    path = receipt(files)
    before = {source: sha(source) for source in files.sources}
    for source in files.sources[1:]:
        data = bytearray(source.read_bytes())
        data[-1] ^= 1
        source.write_bytes(data)
    with pytest.raises(IdentityMismatch) as caught:
        identities(files, path, None)
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
        identities(files, receipt(files, files=[one], extracted_files=[one]), None)


def test_what_was_extracted_counts_where_both_lists_name_a_file(files: CheckpointFiles) -> None:
    """The source of the same name may be another file: loading compares the extracted one."""
    other = [{"name": path.name, "sha256": "cd" * 32} for path in files.sources]
    found = identities(files, receipt(files, files=other), None)
    assert found.drafter == digest_of({path.name: "cd" * 32 for path in files.sources})


def test_a_malformed_receipt_is_named(files: CheckpointFiles) -> None:
    path = files.directory / "DSPARK_COPY_DONE"
    path.write_text("{")
    with pytest.raises(ReceiptError, match=str(path)):
        identities(files, path, None)
