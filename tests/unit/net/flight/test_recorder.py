"""The ring (issue 6, part 2): bounded, beside the round, and kept when something goes wrong."""

import threading
import time
from pathlib import Path

import pytest

from dsparkctl.contract.codes import Op
from dsparkctl.contract.messages import frame
from dsparkctl.net.flight import recorder as room
from dsparkctl.net.flight.pcapng import Packet, read
from dsparkctl.net.flight.recorder import NEWEST, OLDER, Recorder

HELLO = frame(Op.HELLO, 1, 9, bytes(192))
ROWS = b"\1" * 5000


def step(seq: int) -> list[bytes]:
    return [frame(Op.STEP, seq, 9, bytes(100)), ROWS]


def recorder(folder: Path, *, max_bytes: int = 1 << 20, with_rows: bool = False) -> Recorder:
    return Recorder(folder, max_bytes=max_bytes, with_rows=with_rows)


def packets(folder: Path) -> list[Packet]:
    paths = [folder / name for name in (OLDER, NEWEST) if (folder / name).exists()]
    return [packet for path in paths for packet in read(path)]


def test_heads_always_and_rows_where_they_are_asked_for(tmp_path: Path) -> None:
    for with_rows, n_bytes in ((False, len(step(2)[0])), (True, len(step(2)[0]) + len(ROWS))):
        mine = recorder(tmp_path / str(with_rows), with_rows=with_rows)
        mine.sent(step(2))
        mine.received(frame(Op.STEP, 2, 9))
        mine.remark("too late")
        mine.close()
        request, reply, remark = packets(tmp_path / str(with_rows))
        assert (len(request.data), request.is_request, request.is_whole) == (
            n_bytes, True, with_rows
        )  # fmt: skip
        assert request.n_bytes == sum(map(len, step(2)))
        assert (reply.data, reply.is_request) == (frame(Op.STEP, 2, 9), False)
        assert (remark.comment, remark.n_bytes) == ("too late", 0)


def test_a_ring_holds_its_bound_and_says_the_terms_in_each_file(tmp_path: Path) -> None:
    mine = recorder(tmp_path, max_bytes=20_000)
    mine.sent([HELLO])
    for seq in range(2, 2000):
        mine.sent(step(seq))
        if seq % 500 == 0:
            time.sleep(0.3)
    mine.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 20_000
    for name in (OLDER, NEWEST):
        first = next(read(tmp_path / name))
        assert (first.data[:32], first.comment[:12]) == (HELLO[:32], "said earlier")
    assert packets(tmp_path)[-1].data[8:16] == (1999).to_bytes(8, "little")


def test_a_ring_is_put_aside_and_a_new_one_begun(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mine = recorder(tmp_path)
    mine.sent(step(2))
    mine.keep("refused reply: entry 0")
    mine.keep("once in ten seconds is enough")
    time.sleep(0.6)
    mine.sent(step(3))
    mine.close()
    (kept,) = tmp_path.glob("kept-*")
    assert kept.name.endswith("-refused-reply--entry-0-newest.pcapng")
    assert [packet.data[8] for packet in read(kept)] == [2]
    assert [packet.data[8] for packet in packets(tmp_path)] == [3]
    assert "kept its ring: refused reply: entry 0" in caplog.text


def test_not_more_than_eight_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_KEEP_EVERY_S", 0.0)
    mine = recorder(tmp_path)
    for number in range(30):
        mine.sent(step(number))
        mine.keep(f"why {number:02}")
    mine.close()
    assert len([*tmp_path.glob("kept-*")]) <= 2 * room.MAX_KEPT
    assert [*tmp_path.glob("kept-*why-29*")]


def test_a_writer_that_cannot_keep_up_drops_and_counts_and_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write = threading.Event()
    monkeypatch.setattr(Recorder, "_write", lambda *_: may_write.wait(20))
    mine = recorder(tmp_path)
    for seq in range(20_000):
        mine.sent(step(seq))
    assert mine.n_dropped > 10_000
    may_write.set()
    mine.close()


def test_a_full_disk_is_said_once_and_holds_nobody_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Recorder, "_turn", full)
    mine = recorder(tmp_path)
    for seq in range(3):
        mine.sent(step(seq))
        time.sleep(0.3)
    mine.close()
    assert caplog.text.count("cannot write: [Errno 28]") == 1


def test_a_folder_that_cannot_be_made_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Not a directory"):
        recorder(tmp_path / "file" / "folder")
