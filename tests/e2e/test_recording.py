"""A demo recorded on both sides, shown, replayed and compared; and Wireshark's eyes (issue 6,
part 2)."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.running import running_worker
from tests.e2e.test_operator_commands import command

TOP = Path(__file__).parents[2]
CHECKPOINT = TOP / "dsparkctl" / "demo" / "checkpoint"
RECEIPT = ("--receipt", str(CHECKPOINT / "DSPARK_COPY_DONE"))
LUA = TOP / "dsparkctl" / "cli" / "dsp1.lua"

needs_tshark = pytest.mark.skipif(
    shutil.which("tshark") is None,
    reason="DISSECTOR NOT TESTED: no tshark; make system-packages installs it",
)


class Recorded(NamedTuple):
    """Where the recordings of one demo lie, and the worker's port then."""

    worker: Path
    client: Path
    capture: Path
    port: int
    steps_sent: int


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("recorded")
    flags = (*RECEIPT, "--record", str(folder / "worker"), "--record-rows")
    with running_worker(*flags, checkpoint=CHECKPOINT) as worker:
        port = worker.data.port
        capture = subprocess.Popen(
            ["tshark", "-q", "-i", "lo", "-f", f"tcp port {port}", "-w", folder / "capture.pcapng"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) if shutil.which("tshark") else None  # fmt: skip
        if capture is not None:
            wait_for(folder / "capture.pcapng")
        program = [sys.executable, "-c", "from dsparkctl.cli.app import main; main()", "demo"]
        done = subprocess.run(
            [*program, "--endpoint", str(worker.data), "--requests", "3", "--json"],
            env={**os.environ, "VLLM_DSPARK_REMOTE_RECORD": str(folder / "client")},
            capture_output=True, text=True, check=True, timeout=120,
        )  # fmt: skip
        time.sleep(1)
        if capture is not None:
            capture.send_signal(signal.SIGINT)
            capture.wait(30)
    sent = json.loads(done.stdout)["steps_sent"]
    return Recorded(folder / "worker", folder / "client", folder / "capture.pcapng", port, sent)


def wait_for(path: Path) -> None:
    for _ in range(200):
        if path.exists():
            time.sleep(1.0)
            return
        time.sleep(0.05)
    raise AssertionError(path)


def lines(*arguments: object) -> list[dict[str, object]]:
    done = command("record", "show", *arguments, "--json", "-n", "100000")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_both_sides_recorded_every_step(recorded: Recorded) -> None:
    for folder in (recorded.client, recorded.worker):
        rows = lines(folder)
        steps = [row for row in rows if row["op"] == "STEP"]
        assert len(steps) == recorded.steps_sent
        assert {row["status"] for row in rows} == {"OK"}
        assert all(float(str(row["ms"])) > 0 for row in steps)
    table = command("record", "show", recorded.client / "newest.pcapng", "-n", "2")
    assert len(table.stdout.splitlines()) == 3


def test_the_two_recordings_are_of_the_same_replies(recorded: Recorded) -> None:
    done = command("record", "diff", recorded.client, recorded.worker, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["same"] > recorded.steps_sent
    assert (told["other"], told["not_comparable"]) == (0, 0)


def test_a_replay_drafts_the_same_and_another_drafter_does_not(recorded: Recorded) -> None:
    with running_worker(*RECEIPT, checkpoint=CHECKPOINT) as worker:
        done = command("record", "replay", recorded.worker, "--endpoint", worker.data, "--yes")
        assert done.returncode == 0, done.stdout + done.stderr
        assert " 0 other, 0 not comparable" in done.stdout
    with running_worker(*RECEIPT, "--drafter", "scripted", checkpoint=CHECKPOINT) as worker:
        other = command("record", "replay", recorded.worker, "--endpoint", worker.data, "--yes")
        assert other.returncode == 5
        assert "entries were answered otherwise" in other.stderr


def test_a_recording_without_rows_cannot_be_replayed_and_says_why(recorded: Recorded) -> None:
    with running_worker(*RECEIPT, checkpoint=CHECKPOINT) as worker:
        done = command("record", "replay", recorded.client, "--endpoint", worker.data, "--yes")
    assert done.returncode == 1
    assert "the recording has no rows" in done.stderr


def test_what_is_no_recording_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("no")
    for path in (tmp_path / "a", tmp_path, tmp_path / "none"):
        done = command("record", "show", path)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr


# --- Wireshark ------------------------------------------------------------------------------------


def dissected(path: Path, *more: str) -> list[dict[str, list[str]]]:
    argv = ["tshark", "-r", str(path), "-X", f"lua_script:{LUA}", "-T", "json"]
    argv += ["--no-duplicate-keys", *more]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120)
    packets: list[dict[str, list[str]]] = []
    for packet in json.loads(done.stdout):
        found: dict[str, list[str]] = {}
        collect(packet["_source"]["layers"], found)
        packets.append(found)
    return packets


def collect(tree: object, found: dict[str, list[str]]) -> None:
    if isinstance(tree, dict):
        for key, value in tree.items():
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, str):
                    found.setdefault(key, []).append(one)
            collect(value, found)
    elif isinstance(tree, list):
        for value in tree:
            collect(value, found)


@needs_tshark
def test_a_real_capture_of_the_demo_is_taken_apart(recorded: Recorded) -> None:
    only = ("-d", f"tcp.port=={recorded.port},dsp1", "-Y", "dsp1")
    packets = dissected(recorded.capture, *only)
    ops = [op for packet in packets for op in packet["dsp1.app.op"]]
    assert ops.count("2") == 2 * recorded.steps_sent
    assert ops.count("1") == 2
    assert not any("dsp1.odd" in packet for packet in packets)
    steps = [packet for packet in packets if "dsp1.step.step_id" in packet]
    assert [int(one["dsp1.step.step_id"][0]) for one in steps] == sorted(
        int(one["dsp1.step.step_id"][0]) for one in steps
    )
    replies = [packet for packet in packets if "dsp1.draft_id" in packet]
    assert len(replies) == len(steps) == recorded.steps_sent
    assert all(0 <= float(share) <= 1 for one in replies for share in one["dsp1.confidence"])
    (hello,) = (packet for packet in packets if "dsp1.hello.window" in packet)
    assert (hello["dsp1.hello.num_spec"], hello["dsp1.hello.window"]) == (["5"], ["32"])


@needs_tshark
def test_a_flight_recording_is_taken_apart_with_its_rows_cut_off(recorded: Recorded) -> None:
    packets = dissected(recorded.client / "newest.pcapng")
    steps = [packet for packet in packets if "dsp1.step.step_id" in packet]
    assert len(steps) == recorded.steps_sent
    replies = [packet for packet in packets if "dsp1.reply.step_id" in packet]
    assert len(replies) == recorded.steps_sent


@needs_tshark
def test_every_message_and_status_has_its_name(tmp_path: Path) -> None:
    """§6 and §9: the golden messages, each as a packet of a recording."""
    from dsparkctl.contract.codes import EntryStatus, FrameStatus, Op
    from dsparkctl.contract.messages import frame
    from dsparkctl.net.flight.pcapng import Packet, opening, packed

    golden = json.loads((TOP / "tests" / "golden" / "wire" / "messages.json").read_text())
    data = opening()
    for message in golden:
        whole = bytes.fromhex(message["hex"])
        is_request = "reply" not in message["name"]
        data += packed(Packet(1, is_request, whole, len(whole)))
    for status in FrameStatus:
        reply = frame(Op.STEP, 1, 1, status=status) if status else frame(Op.PING, 1, 1)
        data += packed(Packet(2, False, reply, len(reply)))
    path = tmp_path / "golden.pcapng"
    path.write_bytes(data)
    argv = ["tshark", "-r", str(path), "-X", f"lua_script:{LUA}"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert "Lua Error" not in done.stdout + done.stderr
    for name in (*(op.name for op in Op), *(status.name for status in FrameStatus)):
        assert name in done.stdout, name
    text = LUA.read_text()
    assert all(status.name in text for status in EntryStatus)


def test_the_dissector_installs_itself_where_it_is_told(tmp_path: Path) -> None:
    done = command("wire", "dissector", "--to", tmp_path / "plugins")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "plugins" / "dsp1.lua").read_bytes() == LUA.read_bytes()
