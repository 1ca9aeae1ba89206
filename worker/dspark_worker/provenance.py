"""Whether the files that are loaded are those that the receipt names, and the identities (§6.7).

Decides what HELLO will compare, and that nothing is loaded which was not proven. Every file that
the worker reads tensors or configuration from must be listed: in `extracted_files`, or in `files`
where the checkpoint holds the source itself. Refuses to know what is in a file.

A file is looked at before it is hashed and again once it is loaded: one that changed in between was
proven in vain.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dspark_worker import hash_store
from dsparkctl.checkpoint.digest import Finding, State, digest_files, verify_files
from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.checkpoint.files import SETTINGS, CheckpointFiles, is_shard
from dsparkctl.checkpoint.hash_cache import HashCache, Stamp, stamp_of
from dsparkctl.config.files import read_receipt, read_whole
from dsparkctl.contract.identity import NO_MARKOV, drafter_identity, markov_identity
from dsparkctl.contract.receipt import Receipt, ReceiptFile

log = logging.getLogger(__name__)

MAX_MARKOV_BYTES = 64 << 20
_SAY_EVERY_S = 2.0


class IdentityMismatch(Exception):  # noqa: N818 -- the name of §9.1
    """The checkpoint on disk is not the one that the receipt names; a line per file."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What was proven of a checkpoint before it is loaded."""

    drafter: bytes
    """32 bytes that both sides of a HELLO must agree on"""
    markov: bytes
    """likewise; zeros without a Markov file"""
    markov_data: bytes | None
    """the bytes that `markov` is the digest of: the cache is made of these, never of a second
    reading"""
    hashed: Mapping[Path, tuple[Stamp, str]]
    """what every file looked like before it was hashed, and its sha256"""

    def check_unchanged(self) -> None:
        """IdentityMismatch for files that changed since they were hashed; call it after loading."""
        bad = [line for path, then in self.hashed.items() if (line := _change(path, *then))]
        if bad:
            raise IdentityMismatch("\n".join(bad))


def prove(
    files: CheckpointFiles,
    receipt: Path | None,
    markov: Path | None,
    *,
    cache_path: Path | None = None,
    rehash: bool = False,
) -> Proof:
    """Hash every file that will be read; without a receipt they are their own identity.

    `cache_path` keeps the hashes for the next start; `rehash` does not believe what it holds.
    Raises IdentityMismatch, or the file and receipt errors of what could not be read.
    """
    if markov is not None and markov.exists():
        stamp_of(markov)  # a pipe without a writer would hold the start for ever
    data = None if markov is None else read_whole(markov, max_bytes=MAX_MARKOV_BYTES)
    stamps = {path: stamp_of(path) for path in files.sources}
    cache = HashCache() if cache_path is None else hash_store.load(cache_path)
    if rehash:
        for path in stamps:
            cache.forget(path)
    hashing = _Hashing(stamps, cache)
    try:
        if receipt is None:
            found: Sequence[ReceiptFile] = digest_files(
                files.sources, progress=hashing.progress, cache=cache
            )
            identity = drafter_identity(found)
        else:
            listed = read_receipt(receipt)
            found = _verified(files, receipt, listed, hashing)
            identity = drafter_identity(listed.files)
    finally:
        if cache_path is not None:
            hash_store.save(cache_path, cache)
    hashing.done()
    hashed = {
        path: (stamps[path], file.sha256) for path, file in zip(files.sources, found, strict=True)
    }
    identity_of_markov = NO_MARKOV if data is None else markov_identity(data)
    return Proof(identity, identity_of_markov, data, hashed)


class _Hashing:
    """How far the hashing is, told to whoever waits for a start."""

    def __init__(self, stamps: Mapping[Path, Stamp], cache: HashCache) -> None:
        self.cache = cache
        unknown = [stamp for path, stamp in stamps.items() if cache.get(path, stamp) is None]
        self._n_files, self._n_known = len(stamps), len(stamps) - len(unknown)
        self._n_bytes = sum(stamp.n_bytes for stamp in unknown)
        self._n_done = 0
        self._began = self._said = time.monotonic()

    def progress(self, n_bytes: int) -> None:
        self._n_done += n_bytes
        now = time.monotonic()
        if now - self._said >= _SAY_EVERY_S:
            self._said = now
            percent = 100 * self._n_done // max(1, self._n_bytes)
            log.info("hashing: %s of %s, %d %%", _gb(self._n_done), _gb(self._n_bytes), percent)

    def done(self) -> None:
        log.info(
            "hashed %s in %.1f s; %d of %d files were known from an earlier start",
            _gb(self._n_done),
            time.monotonic() - self._began,
            self._n_known,
            self._n_files,
        )


def _verified(
    files: CheckpointFiles, path: Path, receipt: Receipt, hashing: _Hashing
) -> Sequence[ReceiptFile]:
    """The receipt's entries of the files that will be read, all of them found to be true."""
    if not receipt.extracted_files:
        raise IdentityMismatch(
            f"{path}: extracted_files is empty: good for a digest, not for loading a checkpoint"
        )
    if absent := _absent(files, receipt):
        lines = (f"{files.directory / name}: is missing, {path} lists it" for name in absent)
        raise IdentityMismatch("\n".join(lines))
    listed = _listed(files.sources, path, receipt)

    def look() -> Sequence[Finding]:
        cache, progress = hashing.cache, hashing.progress
        return verify_files(listed, files.directory, progress=progress, cache=cache)

    findings = look()
    if any(finding.state is State.CONTENT_DIFFERS for finding in findings):
        # It may be a memory of the cache's that is wrong: what is reported was read just now.
        for finding in findings:
            if finding.state is State.CONTENT_DIFFERS:
                hashing.cache.forget(files.directory / finding.name)
        findings = look()
    bad = [
        f"{files.directory / entry.name}: {_detail(files.directory, entry, finding)}"
        for entry, finding in zip(listed, findings, strict=True)
        if finding.state is not State.OK
    ]
    if bad:
        raise IdentityMismatch("\n".join(bad))
    return listed


def _absent(files: CheckpointFiles, receipt: Receipt) -> list[str]:
    """Extracted files that a worker would read, if they were there."""
    held = {source.name for source in files.sources}
    return [
        file.name
        for file in receipt.extracted_files
        if (is_shard(file.name) or file.name in SETTINGS) and file.name not in held
    ]


def _listed(sources: Sequence[Path], path: Path, receipt: Receipt) -> list[ReceiptFile]:
    """The receipt's entry for each file that will be read."""
    by_name = {file.name: file for file in (*receipt.files, *receipt.extracted_files)}
    unlisted = [source.name for source in sources if source.name not in by_name]
    if unlisted:
        raise IdentityMismatch(f"{path}: does not list {', '.join(unlisted)}")
    return [by_name[source.name] for source in sources]


def _detail(directory: Path, entry: ReceiptFile, finding: Finding) -> str:
    """What is wrong, both digests included: a file of another size was not hashed so far."""
    if finding.state is not State.SIZE_DIFFERS:
        return finding.detail
    return f"{finding.detail}; sha256 is {_digest_now(directory / entry.name)}, not {entry.sha256}"


def _change(path: Path, then: Stamp, sha256: str) -> str:
    """What happened to a file since it was hashed, or nothing."""
    try:
        now = stamp_of(path)
    except CheckpointError as error:
        return f"{error} (it was hashed before it was loaded: {sha256})"
    if now == then:
        return ""
    digest = _digest_now(path)
    if digest == sha256:
        found = f"its bytes are the same again, sha256 {sha256}"
    elif now.n_bytes != then.n_bytes:
        found = f"now {now.n_bytes} bytes, then {then.n_bytes}; sha256 is {digest}, it was {sha256}"
    else:
        found = f"sha256 is {digest}, it was {sha256}"
    return f"{path}: changed after it was hashed: {found}; start again when it is at rest"


def _digest_now(path: Path) -> str:
    try:
        return digest_files([path])[0].sha256
    except CheckpointError as error:
        return f"unknown ({str(error).removeprefix(f'{path}: ')})"


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e8 else f"{n_bytes / 1e6:.1f} MB"
