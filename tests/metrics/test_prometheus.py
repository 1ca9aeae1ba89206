"""The metrics in a real Prometheus (issue 6, part 3): the demo feeds worker and client, and every
panel of the dashboard and every rule finds its series."""

import contextlib
import functools
import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import running_worker

TOP = Path(__file__).parents[2]
EXAMPLES = TOP / "examples"
CHECKPOINT = TOP / "dsparkctl" / "demo" / "checkpoint"
PATIENCE_S = 120.0

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="METRICS NOT TESTED: no Prometheus; make system-packages installs it",
)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def fetched(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


class Server:
    """A Prometheus of the test's own."""

    def __init__(self, port: int) -> None:
        self.base = f"http://127.0.0.1:{port}/api/v1"

    def query(self, expression: str) -> list[Any]:
        text = urllib.parse.quote(expression)
        found: list[Any] = fetched(f"{self.base}/query?query={text}")["data"]["result"]
        return found

    def until(self, expression: str) -> list[Any]:
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            with contextlib.suppress(OSError):
                if found := self.query(expression):
                    return found
            time.sleep(0.5)
        raise AssertionError(f"no data: {expression}")


@contextlib.contextmanager
def files_over_http(folder: Path) -> Iterator[int]:
    """What node_exporter's textfile collector does on a Spark: the file, over HTTP."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        extensions_map = {"": "text/plain; version=0.0.4"}  # noqa: RUF012 -- its base's

        def log_message(self, *_: Any) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@contextlib.contextmanager
def prometheus(folder: Path, worker: int, client: int) -> Iterator[Server]:
    shutil.copy(EXAMPLES / "prometheus" / "dspark.rules.yml", folder)
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["dspark.rules.yml"],
        "scrape_configs": [
            {"job_name": "dspark-worker",
             "static_configs": [{"targets": [f"127.0.0.1:{worker}"]}]},
            {"job_name": "dspark-client", "metrics_path": "/client.prom",
             "static_configs": [{"targets": [f"127.0.0.1:{client}"]}]},
        ],
    }  # fmt: skip
    (folder / "prometheus.yml").write_text(json.dumps(config))
    port = free_port()
    process = subprocess.Popen(
        ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/d",
         f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield Server(port)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Prometheus with a demo's life in it."""
    folder = tmp_path_factory.mktemp("prometheus")
    files, port = folder / "files", free_port()
    files.mkdir()
    receipt = CHECKPOINT / "DSPARK_COPY_DONE"
    flags = ("--receipt", str(receipt), "--metrics", f"127.0.0.1:{port}")
    environment = {
        **os.environ,
        "VLLM_DSPARK_REMOTE_METRICS_FILE": str(files / "client.prom"),
        "VLLM_DSPARK_REMOTE_LOG_INTERVAL_S": "1",
    }
    with (
        running_worker(*flags, checkpoint=CHECKPOINT) as worker,
        files_over_http(files) as client,
        prometheus(folder, port, client) as server,
    ):
        assert worker.ready["metrics"] == [f"http://127.0.0.1:{port}/metrics"]
        server.until("dspark_worker_info")
        program = [sys.executable, "-c", "from dsparkctl.cli.app import main; main()", "demo"]
        demo = subprocess.Popen(
            [*program, "--endpoint", str(worker.data), "--requests", "900", "--step-ms", "15"],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            server.until("rate(dspark_client_steps_sent_total[15s]) > 0")
            server.until("rate(dspark_worker_steps_total[15s]) > 0")
            yield server
        finally:
            demo.kill()
            demo.communicate()


def panels() -> list[tuple[str, str]]:
    found = json.loads((EXAMPLES / "grafana" / "dspark.json").read_text())["panels"]
    return [(one["title"], target["expr"]) for one in found for target in one["targets"]]


@pytest.mark.parametrize(("title", "expression"), panels())
def test_every_panel_of_the_dashboard_has_data(fed: Server, title: str, expression: str) -> None:
    query = expression.replace("$__rate_interval", "15s")
    assert fed.until(query), title


def test_every_series_that_a_rule_asks_for_exists(fed: Server) -> None:
    """A rule over a name that nobody exports never fires and looks well."""
    rules = fetched(f"{fed.base}/rules")["data"]["groups"][0]["rules"]
    assert len(rules) >= 10
    names = {one["__name__"] for one in fetched(
        f"{fed.base}/series?match[]=%7B__name__%3D~%22dspark_.%2A%22%7D")["data"]}  # fmt: skip
    asked = {
        word
        for rule in rules
        for word in rule["query"].replace("(", " ").replace("{", " ").replace("[", " ").split()
        if word.startswith(("dspark_worker_", "dspark_client_"))
    }
    assert asked
    # A breaker that never opened still has its gauge; a reason that never occurred its counter.
    assert asked <= names, asked - names


def test_the_rules_fire_for_what_they_say_and_for_nothing_else() -> None:
    done = subprocess.run(
        ["promtool", "test", "rules", "dspark.rules.test.yml"],
        cwd=EXAMPLES / "prometheus", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_example_configuration_is_one(tmp_path: Path) -> None:
    for name in ("prometheus.yml", "dspark.rules.yml"):
        shutil.copy(EXAMPLES / "prometheus" / name, tmp_path)
    done = subprocess.run(
        ["promtool", "check", "config", str(tmp_path / "prometheus.yml")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
