"""How the worker logs: one object a line, seldom, and never in the way of a round."""

import contextlib
import io
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dspark_worker import logs


def record(
    message: str = "x %d", *args: object, created: float = 0.0, level: int = 30
) -> logging.LogRecord:
    made = logging.LogRecord("dspark_worker.desk", level, "f.py", 1, message, args, None)
    made.created = created
    return made


def test_what_repeats_is_said_once_in_a_while_with_the_count_of_the_rest() -> None:
    sparse = logs.Sparse()
    passed = [sparse.filter(record("x %d", i, created=i / 100)) for i in range(1000)]
    assert sum(passed) == 1
    next_one = record("x %d", 7, created=10.0)
    assert sparse.filter(next_one)
    assert next_one.getMessage() == "x 7 (and 999 more like it)"


def test_different_messages_do_not_silence_each_other() -> None:
    sparse = logs.Sparse()
    assert all(sparse.filter(record(text, 1)) for text in ("x %d", "y %d"))


def test_a_clock_that_is_set_back_silences_nobody() -> None:
    sparse = logs.Sparse()
    assert sparse.filter(record(created=5000.0))
    assert sparse.filter(record(created=100.0))


def test_json_lines_hold_time_level_logger_message_and_trace() -> None:
    made = record("slot %d\n", 3, created=1764554400.25)
    made.msecs = 250.0
    try:
        raise ValueError("why")
    except ValueError as error:
        made.exc_info = (type(error), error, error.__traceback__)
    line = logs.JsonLines().format(made)
    assert "\n" not in line
    found = json.loads(line)
    assert list(found) == ["time", "level", "logger", "message", "trace"]
    assert found["time"] == "2025-12-01T02:00:00.250Z"
    assert (found["level"], found["message"]) == ("warning", "slot 3\n")
    assert "ValueError: why" in found["trace"]


@pytest.fixture
def pipe() -> Iterator[tuple[int, io.TextIOWrapper]]:
    reader, writer = os.pipe()
    stream = os.fdopen(writer, "w", buffering=1)
    yield reader, stream
    os.close(reader)
    os.set_blocking(stream.fileno(), False)
    with contextlib.suppress(OSError):
        stream.close()


def test_a_full_pipe_loses_lines_instead_of_stopping_rounds(
    pipe: tuple[int, io.TextIOWrapper],
) -> None:
    reader, stream = pipe
    unhindered = logs.Unhindered(stream)
    for i in range(5000):  # far more than a pipe holds
        unhindered.emit(record("%s", f"{i} " + "x" * 200))
    head = os.read(reader, 1 << 20)
    assert head.startswith(b"0 xxx")
    unhindered.emit(record("again %d", 1))
    assert b"again 1\n" in os.read(reader, 1 << 20)


def test_a_broken_pipe_is_nobodys_problem(pipe: tuple[int, io.TextIOWrapper]) -> None:
    reader, stream = pipe
    unhindered = logs.Unhindered(stream)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, reader)  # the pipe has no reader any more
    os.close(null)
    for _ in range(3):
        unhindered.emit(record("%d", 1))


@pytest.mark.parametrize("as_json", [True, False])
def test_configure_sends_info_to_stderr_and_not_debug(
    as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    with (tmp_path / "err").open("w+") as stream:
        monkeypatch.setattr("sys.stderr", stream)
        try:
            root.handlers = []
            logs.configure(as_json=as_json)
            logging.getLogger("dspark_worker").debug("hidden")
            logging.getLogger("dspark_worker").info("shown %d", 1)
            logging.getLogger("torch").info("hidden: nobody asked for it")
        finally:
            root.handlers = before
            root.setLevel(level)
        stream.seek(0)
        (line,) = stream.read().splitlines()
    assert "shown 1" in line
    assert line.startswith("{") == as_json
