"""The order of a start, seen from inside: nothing listens before a self-test came out right."""

import socket
from pathlib import Path
from typing import Any

import pytest

from dspark_worker import serve as serve_module
from dspark_worker.choice import Chosen
from dspark_worker.serve import LoadError, serve
from dspark_worker.sockets import ListenError
from dsparkctl.config.fleet import WorkerSettings
from tests.unit.dspark_worker.fake import OWN, FakeDrafter

GOLDEN = Path(__file__).parents[2] / "golden" / "drafter" / "a"


def settings(**given: Any) -> WorkerSettings:
    known: dict[str, Any] = {
        "checkpoint": GOLDEN,
        "identity_from_files": True,
        "drafter": "scripted",
        "listen": "tcp://127.0.0.1:0",
        "admin": ("tcp://127.0.0.1:0",),
    }
    return WorkerSettings(**(known | given))


def test_a_self_test_that_fails_is_a_load_error_and_nothing_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drafter = FakeDrafter()
    drafter.draft_faults = {4}
    chosen = Chosen(drafter, "cpu", "none", "none", lambda: 0)
    monkeypatch.setattr(serve_module, "_load", lambda _: (OWN._replace(max_slots=4), chosen))

    def never(_: object) -> None:
        raise AssertionError("it listens")

    monkeypatch.setattr(serve_module, "listening", never)
    with pytest.raises(LoadError, match=f"{GOLDEN}: self-test draft failed: .*draft fault"):
        serve(settings(), ready_as_json=True)


def test_a_busy_address_is_found_out_before_the_checkpoint_is_touched(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ListenError):
            serve(settings(listen=url, checkpoint=tmp_path / "nothing"), ready_as_json=True)


def test_a_message_that_the_machine_cannot_hold_is_a_load_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_memory(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(serve_module, "Server", no_memory)
    with pytest.raises(LoadError, match=r"no memory for messages of \d+ bytes.*max-rows-per-step"):
        serve(settings(), ready_as_json=True)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, 16 << 20),  # §5, R33: never less
        ({"row_bytes": 30720, "max_slots": 4, "max_rows_per_step": 512}, 16 << 20),
        (
            {"row_bytes": 30720, "window": 250, "max_slots": 4, "max_rows_per_step": 1000},
            32 + 192 + 1000 * 30720,
        ),
        # No STEP brings more rows than the windows hold, whatever the limit says.
        ({"row_bytes": 30720, "max_rows_per_step": 0xFFFFFFFF}, 16 << 20),
        # A length is a u32.
        ({"row_bytes": 1 << 20, "window": 65535, "max_rows_per_step": 1 << 31}, 0xFFFFFFFF),
    ],
)
def test_r33_the_longest_message_is_that_of_hello_or_16_mib(
    changed: dict[str, Any], expected: int
) -> None:
    assert serve_module._max_message_bytes(OWN._replace(**changed)) == expected
