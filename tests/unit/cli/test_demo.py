"""`dsparkctl demo`: how a report is shown, and what each end of a run means."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from dsparkctl.cli import demo as module
from dsparkctl.client.environment import Policy, SettingsError
from dsparkctl.client.terms import TermsError
from dsparkctl.demo.options import EngineEnded, OptionError, Options
from dsparkctl.demo.worker_process import WorkerDied

Cli = Callable[..., tuple[int, str, str]]

PHASE = {
    "rounds": 70,
    "acceptance_per_position": [0.9, 0.8, 0.5, 0.25, 0.0],
    "tokens_per_step": 3.45,
    "fallbacks": {},
}
OUT = {**PHASE, "tokens_per_step": 1.0, "fallbacks": {"fallback_no_connection": 30}}
REPORT: dict[str, Any] = {
    "outputs_match_reference": True,
    **PHASE,
    "ms_per_round": {
        "round": {"p50": 9.0, "p99": 20.0, "max": 20.0},
        "exchange": {"p50": None, "p99": None},
    },
    **dict.fromkeys(module._FIELDS[:-2], 4),
    "policy": "capacity",
    "drafted_requests": 30,
    "remote": "on",
}


@pytest.fixture
def performed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Options]]:
    """Lets `perform` give this report, or raise this error; the options it got."""

    def put(result: dict[str, Any] | Exception) -> list[Options]:
        asked: list[Options] = []

        def perform(options: Options, _note: object) -> dict[str, Any]:
            asked.append(options)
            if isinstance(result, Exception):
                raise result
            return result

        monkeypatch.setattr(module, "perform", perform)
        return asked

    return put


Performed = Callable[..., list[Options]]


def test_the_options_arrive_as_they_were_given(cli: Cli, performed: Performed) -> None:
    asked = performed(REPORT)
    flags = ("--requests", 3, "--tokens", 9, "--concurrency", 2, "--seed", -5)
    more = ("--policy", "shadow", "--timeout-ms", 50, "--step-ms", 40, "--max-seconds", 7)
    code, said, _ = cli("demo", *flags, *more, "--endpoint", "tcp://h:1", "--json")
    assert code == 0
    assert json.loads(said) == REPORT
    (options,) = asked
    assert str(options.endpoint) == "tcp://h:1"
    assert options[2:] == (3, 9, 2, -5, Policy.SHADOW, 50.0, 40.0, 7.0, False, "tcp")


def test_tokens_per_step_with_and_without_the_drafter_come_first(
    cli: Cli, performed: Performed
) -> None:
    performed(REPORT)
    _, said, _ = cli("demo")
    lines = [line.split() for line in said.splitlines()]
    assert lines[1] == ["with", "the", "drafter", "70", "3.45", "2.45", "none"]
    assert lines[2] == ["the", "target", "by", "itself", "1.00"]


def test_an_outage_is_one_screen_a_line_a_phase(cli: Cli, performed: Performed) -> None:
    phases = {"worker on": PHASE, "worker killed": OUT, "worker back": PHASE}
    performed({**REPORT, "phases": phases})
    _, said, _ = cli("demo", "--show-outage")
    lines = said.splitlines()
    assert [line.split()[:2] for line in lines[1:4]] == [name.split() for name in phases]
    assert lines[2].endswith("30 no connection")
    assert len(lines) < 40


def test_outputs_that_differ_are_exit_1_after_the_report(cli: Cli, performed: Performed) -> None:
    performed({**REPORT, "outputs_match_reference": False})
    code, said, why = cli("demo", "--json")
    assert code == 1
    assert json.loads(said)["outputs_match_reference"] is False
    assert why == "an output differs from what the target says without drafts\n"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OptionError("--x: no"), (2, "--x: no\n")),
        (SettingsError("VLLM_X: no"), (2, "VLLM_X: no\n")),
        (TermsError("cannot start"), (1, "cannot start\n")),
        (EngineEnded("TIMEOUT"), (1, "TIMEOUT\n")),
        (WorkerDied("it ended", ["last", "words"]), (1, "  last\n  words\nit ended\n")),
    ],
)
def test_an_error_is_one_line_and_its_exit_code(
    cli: Cli, performed: Performed, error: Exception, expected: tuple[int, str]
) -> None:
    performed(error)
    code, said, why = cli("demo")
    assert (code, why) == expected
    assert said == ""


@pytest.mark.parametrize(
    ("changed", "row"),
    [
        ({"drafted_requests": 0}, "no drafts came"),
        ({"policy": "shadow"}, "policy shadow"),
    ],
)
def test_a_run_is_called_by_whose_drafts_it_had(
    cli: Cli, performed: Performed, changed: dict[str, Any], row: str
) -> None:
    performed({**REPORT, **changed})
    _, said, _ = cli("demo")
    assert row in said
    assert "with the drafter" not in said


def test_a_run_that_was_cut_short_says_so(cli: Cli, performed: Performed) -> None:
    performed({**REPORT, "requests": 8, "requests_done": 3})
    assert "3 of 8 requests were finished" in cli("demo")[2]


def test_without_torch_one_line_says_what_to_install(cli: Cli, performed: Performed) -> None:
    performed(ModuleNotFoundError("No module named 'torch'", name="torch"))
    code, _, err = cli("demo")
    assert code == 1
    assert err == "the demo needs torch: pip install 'dsparkctl[worker]'\n"
