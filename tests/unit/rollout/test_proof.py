"""Success after a restart is what the worker says (issue 5, part 2; R37), and needs traffic."""

from dataclasses import replace
from typing import Any

import pytest

from dsparkctl.config.engine import EngineSettings
from dsparkctl.contract.endpoint import parse_endpoint
from dsparkctl.rollout import proof
from dsparkctl.rollout.acts import WaitTimedOut
from dsparkctl.rollout.gate import NotAnswering
from dsparkctl.rollout.plan import Tell
from dsparkctl.rollout.proof import SeeDrafts, awaited
from dsparkctl.rollout.ranks import RankLost
from tests.unit.rollout.doubles import RecordingHost
from tests.unit.rollout.spark_model import Spark, client

BEFORE: dict[str, Any] = {"pid": 1, "session": 77, "last_seq": 40, "steps": 1000}


@pytest.mark.parametrize(
    ("seen", "left"),
    [
        ({}, "no new session"),
        ({"steps": 1010, "last_seq": 50}, "no new session"),
        ({"session": 0}, "no new session"),
        ({"session": 88, "last_seq": 0, "steps": 1010}, "a new session, but no STEP in it"),
        ({"session": 88, "last_seq": 9, "steps": 1000}, "a new session, but no STEP in it"),
        ({"session": 88, "last_seq": 9, "steps": 1001}, ""),
        ({"pid": 2, "session": 88, "last_seq": 9, "steps": 3}, ""),
        ({"pid": 2, "session": 88, "last_seq": 0, "steps": 0}, "a new session, but no STEP in it"),
    ],
)
def test_only_a_step_of_another_session_is_a_draft_for_the_new_engine(
    seen: dict[str, Any], left: str
) -> None:
    """Steps of the old engine's last moments count for nothing."""
    assert awaited(BEFORE, BEFORE | seen) == left


def see(
    monkeypatch: pytest.MonkeyPatch, answers: list[Any], **of_b: Any
) -> tuple[SeeDrafts, list[str]]:
    wanted = client()
    two = {name: Spark(name, wanted.values, []) for name in "ab"}
    two["b"] = replace(two["b"], **of_b)
    engine: EngineSettings = wanted.engine

    def stats(*_: object) -> dict[str, Any]:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, str):
            raise NotAnswering(f"x: {answer}")
        return {**BEFORE, **answer}

    monkeypatch.setattr(proof, "stats_of", stats)
    hosts = {name: one.host() for name, one in two.items()}
    return SeeDrafts(
        parse_endpoint("tcp://127.0.0.1:18630"), engine, BEFORE, hosts, 0.1, 0.001, 0.02
    ), []


GOOD = {"session": 88, "last_seq": 2, "steps": 1001}


def test_a_worker_that_is_silent_for_a_moment_does_not_end_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    act, said = see(monkeypatch, ["nothing answers", {}, {"session": 88, "last_seq": 0}, GOOD])
    act.apply(RecordingHost("x"), Tell(said.append))
    assert said == [
        "x: waiting up to 0.1 s for the engine's first drafts; they come with its first request: "
        "send one"
    ]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({}, "x: no new session within 0.1 s"),
        ({"session": 88, "last_seq": 0}, "x: a new session, but no STEP in it within 0.1 s"),
        ("nothing answers there", "x: nothing answers there within 0.1 s"),
    ],
)
def test_without_traffic_the_wait_ends_and_says_what_is_certain_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, answer: Any, words: str
) -> None:
    act, said = see(monkeypatch, [answer])
    with pytest.raises(WaitTimedOut) as ended:
        act.apply(RecordingHost("x"), Tell(said.append))
    assert str(ended.value).startswith(words)
    assert "dials with its first request: send one" in str(ended.value)


def test_a_rank_that_ends_while_its_model_loads_ends_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    act, said = see(monkeypatch, [{}], dies_after=2)
    with pytest.raises(RankLost, match="b: the engine ended before it drafted; restart all ranks"):
        replace(act, timeout_s=30.0).apply(RecordingHost("x"), Tell(said.append))
