"""`dsparkctl conform` as its users run it (issue 6, part 1), against a real worker and against what
is none."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest

from dsparkctl.config.hello import HelloParams
from dsparkctl.contract.framing import prefix
from dsparkctl.exits import Exit
from tests.e2e.running import Worker, running_worker
from tests.e2e.test_operator_commands import command, on_a_terminal

SHORT = ("--rounds", "150", "--fuzz", "100")


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with running_worker("--drafter", "scripted") as started:
        yield started


def hello_file(folder: Path, worker: Worker, **changed: Any) -> Path:
    """Its terms as `config hello --json` prints them, without what has a default."""
    own = worker.own
    given = {
        name: getattr(own, name)
        for name in ("num_spec", "window", "hidden", "n_taps", "row_bytes", "noise_token_id",
                     "vocab_size")
    }  # fmt: skip
    given |= {"tap_layer_ids": list(own.tap_layer_ids)}
    given |= {"drafter_identity": own.drafter_identity.hex(), **changed}
    path = folder / "hello.json"
    path.write_text(json.dumps(given))
    return path


def test_our_worker_conforms_and_says_which_readings_it_takes(
    worker: Worker, tmp_path: Path
) -> None:
    junit = tmp_path / "junit.xml"
    done = command("conform", worker.data, "--hello", hello_file(tmp_path, worker), "--yes",
                   "--json", "--junit", junit, *SHORT)  # fmt: skip
    assert done.returncode == Exit.OK, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["counts"]["FAIL"] == 0
    taken = {one["clause"] for one in told["findings"] if one["level"] == "INFO"}
    assert {"§7.5 R2", "§6.4 R24", "§7.2.5 R19", "§6.3 R14"} <= taken
    suite = Xml.parse(junit).getroot()
    assert int(suite.attrib["tests"]) == len(told["findings"]) == len(suite)
    assert suite.attrib["failures"] == "0"
    lines = command("conform", worker.data, "--hello", tmp_path / "hello.json", "--yes", *SHORT)
    assert "INFO  §6.4 R24      RESET and generations: R24: they are kept" in lines.stdout
    assert "0 FAIL" not in lines.stderr


def test_the_trained_drafter_conforms_by_its_checkpoint(tmp_path: Path) -> None:
    """Equal windows by different histories, and rows outside the window, with a real model."""
    checkpoint = Path(__file__).parents[2] / "dsparkctl" / "demo" / "checkpoint"
    receipt = checkpoint / "DSPARK_COPY_DONE"
    with running_worker("--receipt", str(receipt), checkpoint=checkpoint) as real:
        done = command("conform", real.data, "--checkpoint", checkpoint, "--yes", *SHORT)
    assert done.returncode == Exit.OK, done.stdout + done.stderr
    assert "equal windows by different histories give equal drafts" in done.stdout


def test_a_worker_with_another_identity_is_told_and_nothing_else_is(
    worker: Worker, tmp_path: Path
) -> None:
    path = hello_file(tmp_path, worker, drafter_identity="ab" * 32)
    done = command("conform", worker.data, "--hello", path, "--yes")
    assert done.returncode == Exit.FAILED
    assert "IDENTITY_MISMATCH" in done.stdout.splitlines()[0]
    assert "1 FAIL, 28 SKIP" in done.stderr


def test_it_asks_before_it_takes_an_engines_connection(worker: Worker, tmp_path: Path) -> None:
    """R37: connecting alone is enough."""
    path = hello_file(tmp_path, worker)
    silent = command("conform", worker.data, "--hello", path)
    assert silent.returncode == Exit.USAGE
    assert "loses its connection and every window" in silent.stderr
    assert "say --yes" in silent.stderr
    code, shown = on_a_terminal("conform", worker.data, "--hello", path, typed="n\n")
    assert code == Exit.FAILED
    assert "nothing was sent" in shown


@contextmanager
def answering(reply: bytes | None) -> Iterator[str]:
    """Something that listens and says the same to everybody, or nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    sock, _ = server.accept()
                except OSError:
                    return
                with sock:
                    sock.recv(1 << 16)
                    if reply is not None:
                        sock.sendall(reply)
                    else:
                        sock.settimeout(5)
                        sock.recv(1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", Exit.MISMATCH),
        (prefix(40) + b"\0" * 40, Exit.MISMATCH),
        (None, Exit.FAILED),
        (b"", Exit.FAILED),
    ],
    ids=["http", "no magic", "silence", "an end"],
)
def test_exit_code_10_is_for_what_answers_and_does_not_speak_dsp1(
    worker: Worker, tmp_path: Path, reply: bytes | None, code: Exit
) -> None:
    path = hello_file(tmp_path, worker)
    with answering(reply) as endpoint:
        done = command("conform", endpoint, "--hello", path, "--yes", "--timeout", "0.3")
    assert done.returncode == code, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tcp://0.0.0.0:18620", "--hello", "x"), "of a data listener"),
        (("tcp://127.0.0.1:1",), "expected --hello FILE or --checkpoint DIR, one of them"),
        (("tcp://127.0.0.1:1", "--hello", "/nonexistent"), "/nonexistent"),
        (("udp://x:1", "--hello", "x"), "expected one of"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: tuple[str, ...], words: str) -> None:
    done = command("conform", *arguments, "--yes")
    assert done.returncode == Exit.USAGE
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "no JSON"), ("[]", "valid dictionary"), ('{"window": 8}', "Field required")],
)
def test_a_file_of_terms_that_is_none_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "hello.json"
    path.write_text(text)
    done = command("conform", "tcp://127.0.0.1:1", "--hello", path, "--yes")
    assert done.returncode == Exit.USAGE
    assert words in done.stderr
    assert str(path) in done.stderr


def test_missing_fields_of_the_terms_take_defaults(tmp_path: Path, worker: Worker) -> None:
    given = json.loads(hello_file(tmp_path, worker).read_text())
    given["tap_layer_ids"] = tuple(given["tap_layer_ids"])
    params = HelloParams.model_validate(given)
    assert (params.max_slots, params.markov_identity) == (4, "00" * 32)


def test_a_client_that_never_comes_is_a_failure(worker: Worker, tmp_path: Path) -> None:
    path = hello_file(tmp_path, worker)
    done = command("conform-client", "--listen", "tcp://127.0.0.1:0", "--hello", path,
                   "--seconds", "1")  # fmt: skip
    assert done.returncode == Exit.FAILED
    assert "listening on tcp://127.0.0.1:" in done.stderr
    assert "no client sent a STEP within 1 s" in done.stderr
    taken = command("conform-client", "--listen", worker.data, "--hello", path)
    assert taken.returncode == Exit.FAILED
    assert "cannot listen: Address already in use" in taken.stderr
