"""The last messages, written beside the round: a ring of two files, kept when something goes wrong.

Decides what a recording holds (heads always, rows where asked for), its bound, and when the ring is
put aside. The round pays for one copy of a head and an append to a queue; a thread writes, and what
it cannot keep up with is dropped and counted. Files: `newest.pcapng` and `older.pcapng`, each at
most half of the bound, and at most eight `kept-<utc>-<why>-…`.
"""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final

from dsparkctl.contract.codes import Op
from dsparkctl.contract.layout import Buffer
from dsparkctl.net.flight.pcapng import Packet, opening, packed

log = logging.getLogger(__name__)

HEAD_BYTES: Final = 2048
"""Of a request without its rows: the largest head has some 1,200."""
MAX_KEPT: Final = 8
_QUEUE: Final = 4096
_WRITE_EVERY_S: Final = 0.25
_KEEP_EVERY_S: Final = 10.0
NEWEST, OLDER = "newest.pcapng", "older.pcapng"


class Recorder:
    """Records into `folder`, which is made; OSError when it cannot be."""

    def __init__(self, folder: Path, *, max_bytes: int, with_rows: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.n_dropped = 0
        self._folder = folder
        self._max_file_bytes = max_bytes // 2
        self._n_kept_bytes = None if with_rows else HEAD_BYTES
        self._queue: deque[Packet | str] = deque()
        self._hello: dict[bool, Packet] = {}
        self._file: BinaryIO | None = None
        self._n_written = 0
        self._kept_at_s = float("-inf")
        self._trouble = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flight recorder", daemon=True)
        self._thread.start()

    # --- in the round -----------------------------------------------------------------------------

    def sent(self, parts: Sequence[Buffer]) -> None:
        """A request as it goes out, or as it came in at the worker."""
        n_bytes = sum(map(len, parts))
        head = parts[0]
        data = bytes(head) if len(parts) == 1 or self._n_kept_bytes else b"".join(parts)
        self._add(Packet(time.time_ns(), True, data[: self._n_kept_bytes], n_bytes))

    def received(self, message: Buffer) -> None:
        """Its reply."""
        self._add(Packet(time.time_ns(), False, bytes(message), len(message)))

    def remark(self, text: str) -> None:
        """Why there was none."""
        self._add(Packet(time.time_ns(), False, b"", 0, text))

    def keep(self, reason: str) -> None:
        """Put the ring aside once what happened until now is written; not more than one in ten
        seconds."""
        now_s = time.monotonic()
        if now_s - self._kept_at_s >= _KEEP_EVERY_S:
            self._kept_at_s = now_s
            self._queue.append(reason)

    def close(self) -> None:
        """Write what is left."""
        self._stop.set()
        self._thread.join(5)

    def _add(self, packet: Packet) -> None:
        if len(self._queue) >= _QUEUE:
            self.n_dropped += 1
        else:
            self._queue.append(packet)

    # --- beside it --------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.wait(_WRITE_EVERY_S):
            self._drain()
        self._drain()
        if self._file is not None:
            self._file.close()

    def _drain(self) -> None:
        try:
            while self._queue:
                found = self._queue.popleft()
                if isinstance(found, str):
                    self._put_aside(found)
                else:
                    self._write(found)
            if self._file is not None:
                self._file.flush()
        except OSError as error:
            if str(error) != self._trouble:
                log.warning("the flight recorder cannot write: %s", error)
            self._trouble = str(error)

    def _write(self, packet: Packet) -> None:
        block = packed(packet)
        if self._file is None or self._n_written + len(block) > self._max_file_bytes:
            self._turn()
        assert self._file is not None
        self._n_written += self._file.write(block)
        if packet.data[6:8] == _HELLO:
            self._hello[packet.is_request] = packet

    def _turn(self) -> None:
        """A new file, which says at its beginning with which terms the session was opened."""
        if self._file is not None:
            self._file.close()
            self._file = None
            (self._folder / NEWEST).replace(self._folder / OLDER)
        self._file = (self._folder / NEWEST).open("wb")
        self._n_written = self._file.write(opening())
        for is_request in (True, False):
            if packet := self._hello.get(is_request):
                again = packet._replace(comment="said earlier: the terms of the session")
                self._n_written += self._file.write(packed(again))

    def _put_aside(self, reason: str) -> None:
        if self._file is None:
            return
        self._file.close()
        self._file = None
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        word = "".join(c if c.isalnum() else "-" for c in reason)[:40]
        for name in (OLDER, NEWEST):
            with contextlib.suppress(FileNotFoundError):
                (self._folder / name).replace(self._folder / f"kept-{stamp}-{word}-{name}")
        for old in sorted(self._folder.glob("kept-*.pcapng"))[: -2 * MAX_KEPT]:
            old.unlink(missing_ok=True)
        log.warning("the flight recorder kept its ring: %s (%s)", reason, self._folder)


_HELLO: Final = int(Op.HELLO).to_bytes(2, "little")
