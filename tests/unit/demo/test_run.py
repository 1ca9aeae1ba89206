"""The run: which variables reach the client, and what is compared in the end."""

from pathlib import Path

import pytest

from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.demo import rank0, run
from dsparkctl.demo.options import Options
from dsparkctl.demo.terms import EMBEDDED, terms_of
from dsparkctl.engine.reference import Question, reference
from dsparkctl.engine.request import Request
from dsparkctl.engine.target import Target

TERMS = terms_of(EMBEDDED)
HERE = Endpoint("tcp", "127.0.0.1", 1)


def environment(monkeypatch: pytest.MonkeyPatch, **variables: str) -> dict[str, str]:
    for name, text in variables.items():
        monkeypatch.setenv(f"VLLM_DSPARK_{name}", text)
    return rank0._environment(Options(None, Path()), TERMS, HERE)


def test_endpoint_and_identity_are_the_demos_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A demo must not find the engine's worker by itself."""
    found = environment(
        monkeypatch, REMOTE_ENDPOINT="tcp://10.202.28.1:18620", REMOTE_IDENTITY="0" * 64
    )
    assert found["VLLM_DSPARK_REMOTE_ENDPOINT"] == str(HERE)
    assert found["VLLM_DSPARK_REMOTE_IDENTITY"] == TERMS.identity.hex()


def test_other_variables_reach_the_client_and_the_depth_policy_is_conf(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """§6.3: the demo's engine has no other, and no file that could change it."""
    found = environment(
        monkeypatch, REMOTE_TRIP="7", DEPTH_POLICY="off", DEPTH_FILE="/x", MARKOV_CACHE="/m"
    )
    assert found["VLLM_DSPARK_REMOTE_TRIP"] == "7"
    assert found["VLLM_DSPARK_DEPTH_POLICY"] == "conf"
    assert "VLLM_DSPARK_DEPTH_FILE" not in found
    assert found["VLLM_DSPARK_MARKOV_CACHE"] == "/m"


def test_a_step_has_room_for_all_decodes_and_a_chunk_longer_than_the_window() -> None:
    """§2: so that taps are trimmed while others decode."""
    rules = run._rules(Options(None, Path()), TERMS)
    assert rules.n_budget >= rules.window + 4 * (TERMS.engine.num_spec + 1)
    assert rules.caps.ranges == ((1, 2, 5), (3, 4, 4))


def test_an_output_that_differs_in_one_token_is_found() -> None:
    weights = run.prepare(EMBEDDED)
    requests = [Request(str(i), [i, i + 1, i + 2], 6) for i in range(3)]
    questions = [Question(request.prompt, 6) for request in requests]
    for request, output in zip(
        requests, reference(Target(weights, 3, 16), questions, 3), strict=True
    ):
        request.take(output)
    assert run._outputs_match(weights, requests)
    requests[2].tokens[-1] += 1
    assert not run._outputs_match(weights, requests)


def test_of_a_run_that_was_cut_off_only_what_was_said_is_compared() -> None:
    weights = run.prepare(EMBEDDED)
    said = reference(Target(weights, 1, 16), [Question([5, 6, 7], 3)], 1)[0]
    half = Request("a", [5, 6, 7], 6)
    half.take(said)
    silent = Request("b", [1, 2], 6)
    assert run._outputs_match(weights, [half, silent])
