"""A real worker process under a service manager (issue 5: Type=notify, watchdog)."""

import os
import signal
import socket
import subprocess
from pathlib import Path

from tests.e2e.running import GOLDEN, WAIT_S, command


def test_a_worker_tells_its_start_its_beats_and_its_end(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(WAIT_S)
        given = command("--checkpoint", str(GOLDEN), "--identity-from-files")
        named = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        process = subprocess.Popen(
            given,
            env={**os.environ, **named},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            said = _until(manager, "READY=1")
            assert said[0] == "STATUS=proving and loading the checkpoint"
            assert "EXTEND_TIMEOUT_USEC=60000000" in said
            assert not any("WATCHDOG" in word for word in said)
            assert [manager.recv(4096).decode() for _ in range(2)] == ["WATCHDOG=1"] * 2
            process.send_signal(signal.SIGTERM)
            _until(manager, "STOPPING=1")
            assert process.wait(WAIT_S) == 0
        finally:
            process.kill()
            process.communicate()


def _until(manager: socket.socket, word: str) -> list[str]:
    said: list[str] = []
    while not said or not said[-1].startswith(word):
        said.append(manager.recv(4096).decode())
    return said
