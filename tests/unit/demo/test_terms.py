"""The embedded checkpoint, its receipt, and the terms that follow (§6.2, §6.7)."""

import shutil
from pathlib import Path

from dsparkctl.checkpoint.digest import State, digest_files, verify_files
from dsparkctl.checkpoint.files import find_files
from dsparkctl.client.terms import refusal
from dsparkctl.config.files import read_receipt
from dsparkctl.contract.identity import drafter_identity
from dsparkctl.demo.options import MAX_TOKENS
from dsparkctl.demo.terms import EMBEDDED, terms_of
from dsparkctl.engine.workload import MAX_PROMPT


def test_the_committed_receipt_lists_every_file_of_the_embedded_checkpoint_and_matches_it() -> None:
    receipt = read_receipt(EMBEDDED / "DSPARK_COPY_DONE")
    sources = find_files(EMBEDDED).sources
    assert {file.name for file in receipt.files} == {source.name for source in sources}
    assert receipt.extracted_files == receipt.files
    findings = verify_files(receipt.extracted_files, EMBEDDED)
    assert [finding.state for finding in findings] == [State.OK] * len(sources)


def test_the_receipt_in_the_folder_speaks_for_the_identity() -> None:
    terms = terms_of(EMBEDDED)
    assert terms.receipt == EMBEDDED / "DSPARK_COPY_DONE"
    listed = read_receipt(EMBEDDED / "DSPARK_COPY_DONE").files
    assert terms.identity == drafter_identity(listed)


def test_without_a_receipt_the_files_are_hashed(tmp_path: Path) -> None:
    for source in find_files(EMBEDDED).sources:
        shutil.copy(source, tmp_path)
    terms = terms_of(tmp_path)
    assert terms.receipt is None
    assert terms.identity == drafter_identity(digest_files(find_files(tmp_path).sources))
    assert terms.engine == terms_of(EMBEDDED).engine


def test_the_terms_are_ones_that_remote_drafting_can_start_with() -> None:
    """§12, and a context long enough for every request that the options allow."""
    engine = terms_of(EMBEDDED).engine
    assert refusal(engine) == ""
    assert engine.max_slots == 4
    assert engine.max_model_len >= 2048
    assert MAX_PROMPT + MAX_TOKENS + engine.num_spec < engine.max_model_len
