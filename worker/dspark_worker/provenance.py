"""Whether the files that are loaded are those that the receipt names, and the identities (§6.7).

Decides what HELLO will compare. Every file that the worker reads tensors or configuration from must
be listed: in `extracted_files`, or in `files` where the checkpoint holds the source itself. Refuses
to know what is in a file.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dsparkctl.checkpoint.digest import State, digest_files, verify_files
from dsparkctl.checkpoint.files import CheckpointFiles
from dsparkctl.config.files import read_receipt, read_whole
from dsparkctl.contract.identity import NO_MARKOV, drafter_identity, markov_identity
from dsparkctl.contract.receipt import Receipt, ReceiptFile

MAX_MARKOV_BYTES = 64 << 20


class IdentityMismatch(Exception):  # noqa: N818 -- the name of §9.1
    """The checkpoint on disk is not the one that the receipt names; a line per file."""


class Identities(NamedTuple):
    """What both sides of a HELLO must agree on, 32 bytes each."""

    drafter: bytes
    markov: bytes


def identities(files: CheckpointFiles, receipt: Path | None, markov: Path | None) -> Identities:
    """The identities; without a receipt the drafter's is computed from the files themselves.

    Raises IdentityMismatch, or the file and receipt errors of what could not be read.
    """
    found = NO_MARKOV
    if markov is not None:
        found = markov_identity(read_whole(markov, max_bytes=MAX_MARKOV_BYTES))
    if receipt is None:
        return Identities(drafter_identity(digest_files(files.sources)), found)
    return Identities(_by_receipt(files, receipt, read_receipt(receipt)), found)


def _by_receipt(files: CheckpointFiles, path: Path, receipt: Receipt) -> bytes:
    if not receipt.extracted_files:
        raise IdentityMismatch(
            f"{path}: extracted_files is empty: good for a digest, not for loading a checkpoint"
        )
    listed = _listed(files.sources, path, receipt)
    findings = verify_files(listed, files.directory)
    bad = [f"{files.directory / f.name}: {f.detail}" for f in findings if f.state is not State.OK]
    if bad:
        raise IdentityMismatch("\n".join(bad))
    return drafter_identity(receipt.files)


def _listed(sources: Sequence[Path], path: Path, receipt: Receipt) -> list[ReceiptFile]:
    """The receipt's entry for each file that will be read."""
    by_name = {file.name: file for file in (*receipt.files, *receipt.extracted_files)}
    unlisted = [source.name for source in sources if source.name not in by_name]
    if unlisted:
        raise IdentityMismatch(f"{path}: does not list {', '.join(unlisted)}")
    return [by_name[source.name] for source in sources]
