"""The demo on the EXL3 checkpoint: as many drafts accepted, and every K is the stated one (§1)."""

from typing import Any

import pytest

from dsparkctl.checkpoint.digest import State, verify_files
from dsparkctl.checkpoint.files import find_files
from dsparkctl.checkpoint.inspection import inspect
from dsparkctl.checkpoint.model_config import read_model_config
from dsparkctl.contract.receipt import parse_receipt
from dsparkctl.demo.terms import EMBEDDED
from tests.e2e.demo_runs import demo_process, report_of
from tests.e2e.running import Client, running_worker

EXL3 = EMBEDDED.with_name("checkpoint-exl3")


def accepted_per_round(*flags: str) -> tuple[float, dict[str, Any]]:
    done = demo_process("--json", "--requests", "4", "--tokens", "64", *flags)
    assert done.returncode == 0, done.stderr
    report = report_of(done.stdout)
    return report["accepted"] / report["drafted_requests"], report


def test_nine_drafts_of_ten_are_still_accepted_and_the_outputs_are_the_targets() -> None:
    original, _ = accepted_per_round()
    packed, report = accepted_per_round("--checkpoint", str(EXL3))
    assert report["outputs_match_reference"] is True
    assert report["fallbacks"] == {}
    assert packed >= 0.9 * original


def test_its_files_are_the_live_ones_and_its_receipt_speaks_for_them() -> None:
    """§6.7."""
    files = find_files(EXL3)
    assert [path.name for path in files.sources] == [
        "config.json",
        "exl3_moe_plan.json",
        "model-00002-of-00046.safetensors",
        *(f"model-000{n}-of-00046.safetensors" for n in (43, 44, 45, 46)),
        *(f"model-exl3-{name}.safetensors" for name in ("head", "mtp-experts", "mtp")),
    ]
    receipt = parse_receipt((EXL3 / "DSPARK_COPY_DONE").read_bytes())
    assert {file.name for file in receipt.files} == {path.name for path in files.sources}
    findings = verify_files(receipt.extracted_files, EXL3)
    assert {finding.state for finding in findings} == {State.OK}


def test_its_layers_have_the_live_bits() -> None:
    files = find_files(EXL3)
    found = inspect(files, read_model_config(files))
    assert found.ok
    bits = {layer.prefix: layer.bits for layer in found.exl3_layers}
    assert (bits.pop("mtp.0.main_proj"), bits.pop("head")) == (5, 6)
    assert {k for name, k in bits.items() if ".experts." in name} == {4}


def test_a_worker_on_it_says_what_it_keeps_decoded() -> None:
    with running_worker(checkpoint=EXL3) as worker, Client(worker.admin) as client:
        assert worker.ready["backend"] == "torch"
        found = client.stats()
    assert found["backend"] == "torch"
    cache = found["weight_cache"]
    assert cache["pinned_bytes"] > 4 * 384 * 128
    assert cache["kept_bytes"] % (4 * 128 * 128) == 0
    assert cache["misses"] == cache["kept_bytes"] // (4 * 128 * 128)
    assert cache["pinned_bytes"] + cache["kept_bytes"] <= cache["budget_bytes"] == 6144 << 20


def test_without_a_budget_nothing_is_kept() -> None:
    flags = ("--weight-cache-mb", "0", "--backend", "torch")
    with running_worker(*flags, checkpoint=EXL3) as worker, Client(worker.admin) as client:
        cache = client.stats()["weight_cache"]
    assert (cache["pinned_bytes"], cache["kept_bytes"], cache["hits"]) == (0, 0, 0)
    assert cache["misses"] > 0


def test_a_backend_that_cannot_be_had_is_one_line() -> None:
    with (
        pytest.raises(AssertionError, match="backend exllamav3: its kernels need a CUDA device"),
        running_worker("--backend", "exllamav3", checkpoint=EXL3),
    ):
        pass
