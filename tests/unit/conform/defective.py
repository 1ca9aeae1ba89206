"""A worker that is right in all but one respect: our desk behind a small listener, and a defect.

A test double: each defect is a function that spoils a message, a reply, or the worker itself.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dspark_worker.desk import Desk
from dspark_worker.scripted import ScriptedDrafter
from dsparkctl.conform.subject import Subject
from dsparkctl.contract.codes import PayloadKind, SampleMode
from dsparkctl.contract.errors import WireError
from dsparkctl.contract.framing import MAX_MESSAGE_BYTES, PREFIX_BYTES, message_bytes, prefix
from dsparkctl.contract.messages import parse_header
from dsparkctl.contract.records import Hello

HELLO = Hello(
    proto_min=1, proto_max=1, num_spec=5, window=8, hidden=32, n_taps=3,
    tap_layer_ids=(37, 38, 39, 0), payload_kind=PayloadKind.TAPS_BF16, row_bytes=192,
    noise_token_id=150, vocab_size=160, max_model_len=4096, max_slots=4, max_rows_per_step=32,
    sample_mode=SampleMode.GREEDY, tp_size=2, reserved=0, drafter_identity=bytes(range(32)),
    markov_identity=bytes(32), client_name=b"conform",
)  # fmt: skip

Spoil = Callable[[bytes, bytes], bytes]
"""The reply that goes out, of a message and its good reply."""


class Silent(Exception):  # noqa: N818
    """Nothing is answered, and the connection stays."""


class Worker:
    """Serves one connection at a time in threads of its own; the newest wins."""

    def __init__(self) -> None:
        self.drafter = ScriptedDrafter(
            num_spec=HELLO.num_spec, window=HELLO.window, vocab_size=HELLO.vocab_size,
            row_bytes=HELLO.row_bytes, max_slots=HELLO.max_slots,
        )  # fmt: skip
        self.desk = Desk(HELLO, self.drafter, worker_name="defective", clock=time.monotonic)
        self.hear: Callable[[bytes], bytes] = lambda message: message
        self.spoil: Spoil = lambda _message, reply: reply
        self.newest_wins = True
        self.waits_for_any_length = False
        self.one_at_a_time = False
        self._lock = threading.Lock()
        self._current: socket.socket | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    def subject(self, timeout_s: float = 0.6) -> Subject:
        port = self._listener.getsockname()[1]

        def dial(limit_s: float) -> socket.socket:
            return socket.create_connection(("127.0.0.1", port), limit_s)

        return Subject(dial, HELLO, seed=3, timeout_s=timeout_s)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            old, self._current = self._current, sock
            if old is not None and self.newest_wins:
                with contextlib.suppress(OSError):
                    old.shutdown(socket.SHUT_RDWR)
            with self._lock:
                self.desk.connected()
            if self.one_at_a_time:
                self._talk(sock)
            else:
                threading.Thread(target=self._talk, args=(sock,), daemon=True).start()

    def _talk(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError, WireError):
            while True:
                head = _exactly(sock, PREFIX_BYTES)
                limit = 2**32 if self.waits_for_any_length else MAX_MESSAGE_BYTES
                message = self.hear(_message(sock, message_bytes(head, limit=limit)))
                with self._lock:
                    # Whoever connected meanwhile has taken the session over (R4).
                    if sock is not self._current and self.newest_wins:
                        return
                    reply = self.desk.answer(
                        parse_header(message), memoryview(message)[32:], time.monotonic()
                    )
                with contextlib.suppress(Silent):
                    reply = self.spoil(message, reply)
                    sock.sendall(prefix(len(reply)) + reply)


def _message(sock: socket.socket, n_bytes: int) -> bytes:
    head = _exactly(sock, 32)
    parse_header(head, n_bytes)
    return head + _exactly(sock, n_bytes - 32)


def _exactly(sock: socket.socket, n_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < n_bytes:
        more = sock.recv(min(n_bytes - len(data), 1 << 20))
        if not more:
            raise ConnectionResetError
        data += more
    return bytes(data)


@contextmanager
def defective_worker() -> Iterator[Worker]:
    worker = Worker()
    try:
        yield worker
    finally:
        worker.close()
