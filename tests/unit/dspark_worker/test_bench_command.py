"""`bench round`, as it is typed."""

import json
from typing import Any

import pytest

from dspark_worker.__main__ import main


def said(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert main(["bench", "round", "--synthetic", "tiny", "--rounds", "2", *flags]) == 0
    return capsys.readouterr().out


def test_a_table_names_every_part_beside_the_floor(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys)
    for word in (
        *("receive", "apply", "main_proj", "context KV", "attention", "MoE", "head", "Markov"),
        *("confidence", "reply", "whole round", "matmuls alone", "bytes over bandwidth"),
    ):
        assert f"\n{word} " in out, word
    assert "whole round / matmuls alone: " in out


def test_json_holds_the_same_and_the_memory_where_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    top: dict[str, Any] = json.loads(
        said(capsys, "--json", "--requests", "3", "--n-out", "2", "--rss-rounds", "20")
    )
    (one,) = top["results"]
    assert (one["requests"], one["rows"], one["n_out"], one["rounds"]) == (3, 6, 2, 2)
    assert one["ratio"] == pytest.approx(
        one["whole"]["p50_us"] / one["floor"]["matmuls"]["p50_us"], rel=0.01
    )
    assert one["parts"]["MoE"]["p50_us"] > 0
    assert set(top["rss"]) == {"bytes_per_round", "first_bytes", "last_bytes"}
    assert top["clock"] == "thread time"


def test_growth_goes_through_requests_rows_and_n_out(capsys: pytest.CaptureFixture[str]) -> None:
    top = json.loads(said(capsys, "--json", "--growth"))
    loads = [(r["requests"], r["rows"], r["n_out"], r["drafting"]) for r in top["results"]]
    assert loads == [
        *[(n, 6, 0, True) for n in (1, 2, 3, 4)],
        *[(1, n, 0, True) for n in (1, 2, 4, 8, 16)],
        (1, 16, 0, False),
        *[(1, 6, n, True) for n in (1, 2, 3, 4, 5)],
    ]


@pytest.mark.parametrize(
    "flags",
    [
        ("--requests", "5"),
        ("--requests", "0"),
        ("--rounds", "1"),
        ("--n-out", "x"),
        ("--synthetic", "huge"),
        ("--checkpoint", "DIR", "--synthetic", "tiny"),
    ],
)
def test_flags_that_cannot_be_are_usage_errors(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bench", "round", *flags])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert said.endswith("(see dsparkctl bench round --help)\n")
    assert said.count("\n") == 1


@pytest.mark.parametrize(("flag", "most"), [("--n-out", 5), ("--rows", 16)])
def test_more_than_the_model_has_is_one_line_and_2(
    capsys: pytest.CaptureFixture[str], flag: str, most: int
) -> None:
    assert main(["bench", "round", "--synthetic", "tiny", flag, "200"]) == 2
    assert capsys.readouterr().err == f"{flag}: 200: this model has {most} at most\n"


def test_a_checkpoint_that_is_none_is_one_line_and_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "round", "--checkpoint", "/nowhere"]) == 1
    assert capsys.readouterr().err.startswith("/nowhere: is no readable folder")
