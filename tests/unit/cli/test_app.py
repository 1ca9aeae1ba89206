"""The frame around all commands: table, exit codes, one-line errors, streams, completion."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer

from dsparkctl import CONTRACT_VERSION, __version__
from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.cli import app as cli_app
from dsparkctl.cli import render
from dsparkctl.cli.app import COMMANDS, run
from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.config.errors import ReadError, WriteError
from dsparkctl.contract.receipt import ReceiptError

Cli = Callable[..., tuple[int, str, str]]

GOLDEN = Path(__file__).parents[2] / "golden" / "drafter" / "a"

MAIN = [sys.executable, "-c", "from dsparkctl.cli.app import main; main()"]


def process(
    *args: str, env: Mapping[str, str] | None = None, stdout: int = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own."""
    return subprocess.run(
        [*MAIN, *args],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
        timeout=60,
        check=False,
    )


def test_the_exit_codes_are_the_issues() -> None:
    assert [code.value for code in Exit] == [*range(11), 130]


def test_version_names_the_contract_too(cli: Cli) -> None:
    said = f"dsparkctl {__version__} (contract {CONTRACT_VERSION})\n"
    assert cli("--version") == (0, said, "")


@pytest.mark.parametrize("args", [(), ("--help",), ("-h",)])
def test_help_lists_every_command(cli: Cli, args: tuple[str, ...]) -> None:
    code, out, err = cli(*args)
    assert (code, err) == (0, "")
    for name, entry in COMMANDS.items():
        assert f"  {name} " in out
        assert entry.help in out


@pytest.mark.parametrize("name", [n for n, e in COMMANDS.items() if find_spec(e.module)])
def test_every_command_of_the_table_has_help(cli: Cli, name: str) -> None:
    code, out, _ = cli(name, "--help")
    assert code == 0
    assert out.startswith(f"Usage: dsparkctl {name} ")


def test_help_imports_no_command_and_none_of_their_libraries() -> None:
    """The start-up time of every command line hangs on it."""
    script = (
        "import sys; from dsparkctl.cli.app import run; run(['--help']);"
        "print(sorted(set(sys.modules) & {'pydantic', 'yaml', 'rich', 'torch', 'numpy', 'paramiko',"
        "*(f'dsparkctl.cli.{n}' for n in ('config', 'identity', 'demo', 'probe', 'wire'))}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_starts_within_twice_the_time_of_importing_typer() -> None:
    """The best of several turns each, so that a busy machine does not decide."""

    def seconds(*command: str) -> float:
        start = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - start

    turns = [
        (seconds(sys.executable, "-c", "import typer"), seconds(*MAIN, "--help")) for _ in range(5)
    ]
    base, ours = (min(column) for column in zip(*turns, strict=True))
    assert ours <= 2 * base


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            ("simulat",),
            "No such command 'simulat'. Did you mean 'simulate'? (see dsparkctl --help)",
        ),
        (("--nope",), "No such option: --nope"),
        (("identity",), "Missing command. (see dsparkctl identity --help)"),
        (("identity", "receipt"), "Missing argument 'RECEIPT'."),
        (("config", "hello", "--max-slots", "x"), "Invalid value for '--max-slots'"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(cli: Cli, args: tuple[str, ...], said: str) -> None:
    code, out, err = cli(*args)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(said)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (Stop(Exit.LOCKED, "host: locked"), 7, "host: locked\n"),
        (ReceiptError("r: bad"), 2, "r: bad\n"),
        (ReadError("r: unreadable"), 2, "r: unreadable\n"),
        (WriteError("r: full"), 1, "r: full\n"),
        (CheckpointError("c: torn"), 1, "c: torn\n"),
        (PermissionError(13, "Permission denied", "/x"), 1, "/x: Permission denied\n"),
        (OSError(28, "No space left on device"), 1, "No space left on device\n"),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(32, "Broken pipe"), 1, ""),
        (typer.Exit(6), 6, ""),
    ],
)
def test_an_error_a_person_can_act_on_is_one_line_with_its_code(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, said: str
) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(render, "data", fail)
    found, _, err = cli("--version")
    assert (found, err) == (code, said)


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(render, "data", fail)
    with pytest.raises(ZeroDivisionError):
        run(["--version"])


def test_the_installed_command_is_main() -> None:
    assert callable(cli_app.main)
    assert process("--version").stdout.startswith("dsparkctl ")


def test_a_reader_that_leaves_early_hears_nothing_of_us() -> None:
    """`dsparkctl config schema | head -1`"""
    read, write = os.pipe()
    os.close(read)
    done = process("config", "schema", stdout=write)
    os.close(write)
    assert done.stderr == ""
    assert done.returncode == 1


def test_a_full_disk_behind_stdout_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = process("config", "schema", stdout=full.fileno())
    assert (done.returncode, done.stderr) == (1, "No space left on device\n")


CLOSED = [
    (("wire", "decode", "44"), 2),
    (("checkpoint", "inspect", str(GOLDEN)), 0),
    (("worker", "serve", "--help"), 0),
    (("worker", "serve", "--nope"), 2),
    (("demo", "--endpoint", "tcp://127.0.0.1:1", "--requests", "1", "--tokens", "4"), 0),
    (("--version",), 0),
]


@pytest.mark.parametrize("closed", [">&-", "<&- >&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("args", "code"), CLOSED)
def test_a_closed_stream_changes_no_exit_code_and_is_no_traceback(
    args: tuple[str, ...], code: int, closed: str
) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *MAIN, *args],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    assert done.returncode == code


def test_closed_streams_get_their_own_numbers_back() -> None:
    """Otherwise the first socket would be everybody's stdout."""
    code = (
        "import sys; from dsparkctl.streams import open_missing; open_missing();"
        "sys.exit([s.fileno() for s in (sys.stdin, sys.stdout, sys.stderr)] != [0, 1, 2])"
    )
    command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", code]
    assert subprocess.run(command, check=False).returncode == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("dsparkctl ident", {"identity"}),
        ("dsparkctl identity ", {"receipt", "verify", "write"}),
        ("dsparkctl identity receipt --ex", {"--expect"}),
    ],
)
def test_the_shell_completes_commands_of_modules_not_loaded_yet(
    words: str, expected: set[str]
) -> None:
    env = {
        "_DSPARKCTL_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    assert set(process(env=env).stdout.split()) == expected


def test_a_completion_script_is_offered() -> None:
    done = process(env={"_DSPARKCTL_COMPLETE": "source_bash"})
    assert "_DSPARKCTL_COMPLETE=complete_bash" in done.stdout
