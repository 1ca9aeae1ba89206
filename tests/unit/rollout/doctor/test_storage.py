"""doctor's checks of disk, checkpoint and receipt (issue 5 §2; §6.7, R41)."""

import base64
from dataclasses import replace
from typing import Any

from dsparkctl.contract.receipt import Receipt, ReceiptFile, render_receipt
from dsparkctl.rollout.doctor.checks.storage import checkpoint, disk
from tests.unit.rollout.doctor.seeing import lines, seen, worker

GIB = 1 << 30
FOLDER, RECEIPT = "/srv/dspark/checkpoint", "/srv/dspark/DSPARK_COPY_DONE"
BRING = " -> bring it: dsparkctl deploy checkpoint"
FILES = (
    ReceiptFile("model.safetensors", "a" * 64, 10 * GIB),
    ReceiptFile("config.json", "b" * 64, 700),
)
GOOD: dict[str, int | None] = {"model.safetensors": 10 * GIB, "config.json": 700, "more": 1}


def receipt(data: bytes | None = None) -> dict[str, Any]:
    content = render_receipt(Receipt(FILES, FILES)) if data is None else data
    return {"content": base64.b64encode(content).decode(), "error": None}


def checked(sizes: dict[str, int | None], **other: Any) -> list[str]:
    folder = {"sizes": sizes, "error": None}
    return lines(checkpoint(worker(), seen(checkpoint=folder, **{"receipt": receipt(), **other})))


def test_a_whole_checkpoint_is_two_lines() -> None:
    assert checked(GOOD) == [
        f"ok x86host receipt: {RECEIPT}: 2 files listed",
        f"ok x86host checkpoint: {FOLDER}: all files listed are there, 10.0 GiB",
    ]


def test_a_missing_file_is_named_and_a_link_that_leads_nowhere_is_one() -> None:
    said = f"fail x86host checkpoint: {FOLDER}: missing model.safetensors{BRING}"
    assert checked({"config.json": 700})[1] == said
    assert checked(GOOD | {"model.safetensors": None})[1] == said


def test_a_file_of_another_size_is_half_a_file() -> None:
    assert checked(GOOD | {"config.json": 699})[1] == (
        f"fail x86host checkpoint: {FOLDER}: another size: config.json (699 bytes, listed with"
        f" 700){BRING}"
    )


def test_without_its_folder_nothing_else_is_said() -> None:
    folder = {"sizes": {}, "error": "No such file or directory"}
    assert lines(checkpoint(worker(), seen(checkpoint=folder, receipt=receipt()))) == [
        f"fail x86host checkpoint: {FOLDER}: No such file or directory{BRING}"
    ]


def test_a_receipt_that_is_missing_or_no_receipt() -> None:
    gone = {"content": None, "error": "No such file or directory"}
    assert checked(GOOD, receipt=gone) == [
        f"fail x86host receipt: {RECEIPT}: No such file or directory{BRING}"
    ]
    assert checked(GOOD, receipt=receipt(b"{}")) == [
        f"fail x86host receipt: {RECEIPT}: files: missing; a receipt lists its source files"
        f" there{BRING}"
    ]


def test_a_receipt_without_extracted_files_loads_nothing() -> None:
    assert checked(GOOD, receipt=receipt(render_receipt(Receipt(FILES))))[1] == (
        f"fail x86host checkpoint: {RECEIPT}: extracted_files is empty: nothing of it can be loaded"
        " -> write one: dsparkctl identity write"
    )


def test_without_a_receipt_by_choice_the_files_are_counted() -> None:
    assert checked(GOOD, receipt=None) == [
        f"ok x86host checkpoint: {FOLDER}: 3 files, no receipt is used"
    ]


def disked(
    root: float, checkpoint_free: float = 100.0, *, read_only: bool = False, **other: Any
) -> list[str]:
    part = replace(worker(), wheels_bytes=1 * GIB)
    disks = {
        "/opt/dspark": {
            "at": "/opt",
            "free_bytes": int(root * GIB),
            "is_read_only": read_only,
        },
        FOLDER: {"at": "/srv", "free_bytes": int(checkpoint_free * GIB), "is_read_only": False},
    }
    return lines(disk(part, seen(disks=disks, **other)))


def test_a_release_needs_its_wheels_and_what_they_unpack_to() -> None:
    assert disked(7.0) == [
        "ok x86host disk: /opt/dspark: 7.0 GiB free on the filesystem of /opt, 6.2 GiB needed"
    ]
    assert disked(6.0) == [
        "fail x86host disk: /opt/dspark: 6.0 GiB free on the filesystem of /opt, 6.2 GiB needed"
        " -> free some, lower release.keep, or use another disk"
    ]


def test_a_filesystem_that_has_become_read_only() -> None:
    assert disked(7.0, read_only=True) == [
        "fail x86host disk: /opt/dspark: its filesystem is read-only -> find out why (dmesg), then"
        " sudo mount -o remount,rw"
    ]


def test_while_nobody_knows_the_wheels_little_space_is_a_warning() -> None:
    disks = {"/opt/dspark": {"at": "/opt", "free_bytes": 5 * GIB, "is_read_only": False}}
    assert lines(disk(worker(), seen(disks=disks))) == [
        "warn x86host disk: /opt/dspark: 5.0 GiB free, a release with torch for CUDA takes about"
        " 12.0 GiB -> free some, or lower release.keep"
    ]


def test_the_checkpoints_disk_must_hold_what_is_missing_of_it() -> None:
    folder: dict[str, Any] = {"sizes": {"config.json": 700}, "error": None}
    found = disked(7.0, 9.0, checkpoint=folder, receipt=receipt())
    assert found[1] == (
        f"fail x86host disk: {FOLDER}: 9.0 GiB free on the filesystem of /srv, 10.2 GiB needed"
        " -> free some, lower release.keep, or use another disk"
    )
