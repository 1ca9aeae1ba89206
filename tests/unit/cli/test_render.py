"""What is printed where, and how."""

import io
import json
import sys

import pytest

from dsparkctl.cli import render


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """In place of stderr; called by the test itself, since pytest swaps streams before it."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return stream


def test_data_goes_to_stdout_and_the_rest_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    render.data("a")
    render.json_line({"b": [1]})
    render.note("c")
    render.error("d\ne")
    assert capsys.readouterr() == ('a\n{"b":[1]}\n', "c\nd\ne\n")


def test_json_is_one_line_and_strict(capsys: pytest.CaptureFixture[str]) -> None:
    render.json_line({"text": "a\nb"})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"text": "a\nb"}
    with pytest.raises(ValueError, match="JSON"):
        render.json_line(float("nan"))


def test_errors_are_red_on_a_terminal_unless_no_color_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = a_terminal(monkeypatch)
    render.error("x")
    assert terminal.getvalue() == "\x1b[31mx\x1b[0m\n"
    monkeypatch.setenv("NO_COLOR", "1")
    render.error("y")
    assert terminal.getvalue().endswith("\x1b[0m\ny\n")


def test_strange_names_do_not_reach_the_terminal_as_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A file name may hold an escape sequence, or bytes that are no text."""
    render.data("a\x1b[2Jb\udcff\r")
    assert capsys.readouterr().out == "a\\x1b[2Jb\\udcff\\r\n"


def test_columns_are_aligned_and_numbers_stand_to_the_right(
    capsys: pytest.CaptureFixture[str],
) -> None:
    render.table(("name", "n"), [("ab", 5), ("c", 1234)])
    assert capsys.readouterr().out == "name     n\nab       5\nc     1234\n"


def test_an_empty_table_is_its_headings(capsys: pytest.CaptureFixture[str]) -> None:
    render.table(("name", "n"), [])
    render.fields({})
    assert capsys.readouterr().out.split() == ["name", "n"]


@pytest.mark.parametrize(
    ("n_bytes", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (5 << 30, "5.0 GiB"),
        (1 << 50, "1024.0 TiB"),
    ],
)
def test_sizes_are_for_people(n_bytes: int, shown: str) -> None:
    assert render.size(n_bytes) == shown


def test_a_progress_bar_is_drawn_on_a_terminal_and_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = a_terminal(monkeypatch)
    with render.progress("hashing", 100) as tick:
        assert tick is not None
        tick(50)
        tick(50)
    drawn = terminal.getvalue()
    assert "hashing [###############               ]  50%" in drawn
    assert drawn.endswith("\r\x1b[K")


def test_there_is_no_progress_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with render.progress("hashing", 100) as tick:
        assert tick is None
    assert capsys.readouterr().err == ""
