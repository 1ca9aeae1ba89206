"""The worker's command line: every key a flag, a flag wins over the file, one line a fault."""

import argparse
from pathlib import Path

import pytest

from dspark_worker import options
from dsparkctl.config.hello import HelloParams
from dsparkctl.config.worker import WorkerSettings

REQUIRED = ("--checkpoint", "DIR", "--identity-from-files")


def settings(*flags: str) -> WorkerSettings:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    options.add_flags(parser)
    return options.settings_of(parser.parse_args(flags))


def test_every_key_of_the_section_has_its_flag() -> None:
    parser = argparse.ArgumentParser()
    options.add_flags(parser)
    text = parser.format_help()
    for name, field in WorkerSettings.model_fields.items():
        name = f"no-{name}" if field.default is True else name
        assert f"--{name.replace('_', '-')} " in text or f"--{name.replace('_', '-')}\n" in text


def test_the_defaults_are_those_of_the_issue() -> None:
    found = settings(*REQUIRED)
    assert (found.max_slots, found.max_rows_per_step, found.max_model_len) == (4, None, 327_680)
    assert (found.listen.port, found.kv_quant, found.drafter) == (18620, "auto", "torch")
    assert not found.listen.is_wildcard
    assert HelloParams.model_fields["tp_size"].default == 2


def test_every_flag_reaches_its_key() -> None:
    found = settings(
        *("--checkpoint", "C", "--receipt", "R", "--markov", "M", "--listen", "tcp://127.0.0.1:1"),
        *("--admin", "tcp://127.0.0.1:2", "tcp://127.0.0.1:3", "--admin", "tcp://[::1]:4"),
        *("--device", "cuda:1", "--dtype", "bfloat16", "--kv-quant", "mxfp8_32"),
        *("--drafter", "scripted", "--max-slots", "2", "--max-rows-per-step", "9"),
        *("--max-model-len", "77", "--spin-us", "5", "--log-json"),
    )
    assert (found.checkpoint, found.receipt, found.markov) == (Path("C"), Path("R"), Path("M"))
    assert [str(e) for e in found.admin] == [
        *("tcp://127.0.0.1:2", "tcp://127.0.0.1:3", "tcp://[::1]:4")
    ]
    assert (found.device, found.dtype, found.kv_quant) == ("cuda:1", "bfloat16", "mxfp8_32")
    assert (found.drafter, found.max_slots, found.max_rows_per_step) == ("scripted", 2, 9)
    assert (found.max_model_len, found.spin_us, found.log_json) == (77, 5, True)


def test_a_path_may_look_like_a_number() -> None:
    found = settings("--checkpoint", "20261201", "--receipt", "7")
    assert (found.checkpoint, found.receipt) == (Path("20261201"), Path("7"))


def test_a_flag_wins_over_the_file_and_the_rest_comes_from_it(tmp_path: Path) -> None:
    config = tmp_path / "dspark.yaml"
    config.write_text(
        "version: 1\nworker: {checkpoint: c, receipt: r, max_slots: 2, max_model_len: 50}\n"
    )
    found = settings("--config", str(config), "--max-slots", "3")
    assert (found.max_slots, found.max_model_len) == (3, 50)
    assert found.checkpoint == tmp_path / "c"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), "--checkpoint is missing"),
        (("--checkpoint", "C"), "--receipt FILE"),
        ((*REQUIRED, "--max-slots", "0"), "--max-slots: "),
        ((*REQUIRED, "--max-slots", "x"), "--max-slots: "),
        (
            (*REQUIRED, "--weight-cache-mb", "-1"),
            "--weight-cache-mb: input should be greater than or equal to 0, got -1",
        ),
        ((*REQUIRED, "--max-slots", "9" * 20), "--max-slots: input should be less than or equal"),
        ((*REQUIRED, "--max-slots", "9" * 9999), "--max-slots: "),
        ((*REQUIRED, "--listen", "tcp://0.0.0.0:1"), "--allow-any-address"),
        ((*REQUIRED, "--listen", "o1rdma://0.0.0.0:1"), "--listen: "),
        ((*REQUIRED, "--admin", "tcp://127.0.0.1:18620"), "--admin: "),
    ],
)
def test_a_fault_is_one_line_that_names_the_flag(flags: tuple[str, ...], expected: str) -> None:
    with pytest.raises(options.UsageError) as caught:
        settings(*flags)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_faults_are_two_lines() -> None:
    with pytest.raises(options.UsageError) as caught:
        settings(*REQUIRED, "--max-slots", "0", "--spin-us", "-1")
    assert len(str(caught.value).splitlines()) == 2
