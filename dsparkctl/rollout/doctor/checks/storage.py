"""Free space, and whether the checkpoint is what its receipt lists (§6.7, R41)."""

import base64
from collections.abc import Iterator
from typing import Final

from dsparkctl.contract.receipt import Receipt, ReceiptError, parse_receipt
from dsparkctl.rollout.doctor.finding import Finding, fail, ok, warn
from dsparkctl.rollout.doctor.observations import Disk, Seen
from dsparkctl.rollout.doctor.part import Part
from dsparkctl.rollout.doctor.words import gib, some

UNPACKED: Final = 6
"""Wheels once more as they are, and five times unpacked (torch: 4.6)."""
UNKNOWN_RELEASE_BYTES: Final = 12 << 30
"""A release with torch for CUDA, while nobody knows its wheels."""
SPARE_BYTES: Final = 256 << 20
_BRING: Final = "bring it: dsparkctl deploy checkpoint"


def disk(part: Part, seen: Seen) -> Iterator[Finding]:
    if part.worker is None or seen.disks is None:
        return
    root = seen.disks.get(part.release_root)
    if root is not None:
        yield _releases(part, root)
    checkpoint = str(part.worker.checkpoint)
    missing_bytes = sum(one or 0 for one in _missing(part, seen).values())
    under = seen.disks.get(checkpoint)
    if under is not None and missing_bytes:
        yield _room(part, checkpoint, under, missing_bytes + SPARE_BYTES)


def _releases(part: Part, disk: Disk) -> Finding:
    if part.wheels_bytes is not None:
        need_bytes = SPARE_BYTES + UNPACKED * part.wheels_bytes
        return _room(part, part.release_root, disk, need_bytes)
    if disk.is_read_only or disk.free_bytes >= UNKNOWN_RELEASE_BYTES:
        return _room(part, part.release_root, disk, 0)
    said = f"{part.release_root}: {gib(disk.free_bytes)} free, a release with torch for CUDA takes"
    return warn(
        part.host,
        "disk",
        f"{said} about {gib(UNKNOWN_RELEASE_BYTES)}",
        "free some, or lower release.keep",
    )


def _room(part: Part, path: str, disk: Disk, need_bytes: int) -> Finding:
    said = f"{path}: {gib(disk.free_bytes)} free on the filesystem of {disk.at}"
    if need_bytes:
        said += f", {gib(need_bytes)} needed"
    if disk.is_read_only:
        todo = "find out why (dmesg), then sudo mount -o remount,rw"
        return fail(part.host, "disk", f"{path}: its filesystem is read-only", todo)
    if disk.free_bytes < need_bytes:
        return fail(part.host, "disk", said, "free some, lower release.keep, or use another disk")
    return ok(part.host, "disk", said)


def checkpoint(part: Part, seen: Seen) -> Iterator[Finding]:
    worker = part.worker
    if worker is None or seen.checkpoint is None:
        return
    if seen.checkpoint.error:
        said = f"{worker.checkpoint}: {seen.checkpoint.error}"
        yield fail(part.host, "checkpoint", said, _BRING)
        return
    if seen.receipt is None:
        n = len(seen.checkpoint.sizes)
        yield ok(part.host, "checkpoint", f"{worker.checkpoint}: {n} files, no receipt is used")
        return
    try:
        listed = _receipt(seen)
    except ReceiptError as error:
        yield fail(part.host, "receipt", f"{worker.receipt}: {error}", _BRING)
        return
    yield ok(part.host, "receipt", f"{worker.receipt}: {len(listed.extracted_files)} files listed")
    yield _held_to(part, seen, listed)


def _held_to(part: Part, seen: Seen, listed: Receipt) -> Finding:
    assert part.worker is not None
    assert seen.checkpoint is not None
    where, sizes = part.worker.checkpoint, seen.checkpoint.sizes
    if not listed.extracted_files:
        said = f"{part.worker.receipt}: extracted_files is empty: nothing of it can be loaded"
        return fail(part.host, "checkpoint", said, "write one: dsparkctl identity write")
    if missing := list(_missing(part, seen)):
        return fail(part.host, "checkpoint", f"{where}: missing {some(missing)}", _BRING)
    wrong = [
        f"{file.name} ({sizes[file.name]} bytes, listed with {file.n_bytes})"
        for file in listed.extracted_files
        if file.n_bytes is not None and sizes[file.name] != file.n_bytes
    ]
    if wrong:
        return fail(part.host, "checkpoint", f"{where}: another size: {some(wrong)}", _BRING)
    total = gib(sum(sizes[file.name] or 0 for file in listed.extracted_files))
    return ok(part.host, "checkpoint", f"{where}: all files listed are there, {total}")


def _missing(part: Part, seen: Seen) -> dict[str, int | None]:
    """Name and listed size of what the receipt lists and the folder lacks; links that lead nowhere
    count as lacking."""
    try:
        listed = _receipt(seen).extracted_files
    except ReceiptError:
        return {}
    sizes = seen.checkpoint.sizes if seen.checkpoint else {}
    return {file.name: file.n_bytes for file in listed if sizes.get(file.name) is None}


def _receipt(seen: Seen) -> Receipt:
    if seen.receipt is None:
        raise ReceiptError("none is named")
    if seen.receipt.content is None:
        raise ReceiptError(seen.receipt.error or "cannot be read")
    return parse_receipt(base64.b64decode(seen.receipt.content))
