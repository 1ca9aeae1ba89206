"""A TCP relay between engine and worker that can be told to misbehave.

Decides how bytes are held up and connections die. Refuses to know what the bytes say.
"""

import contextlib
import socket
import struct
import threading
import time

_CHUNK = 1 << 16
_LINGER_0 = struct.pack("ii", 1, 0)
"""Closing such a socket sends a reset."""


class Proxy:
    """Listens on loopback and relays to `port`; the faults are methods."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._stalled_until_s = 0.0
        self._bytes_per_s = 0.0
        self._slow_until_s = 0.0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def reset(self) -> None:
        """Every connection ends with RST on both sides."""
        with self._lock:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_0)
                    sock.close()
            self._open.clear()

    def stall(self, seconds: float) -> None:
        """Nothing passes for so long, in either direction."""
        self._stalled_until_s = time.monotonic() + seconds

    def slow(self, seconds: float, bytes_per_s: float) -> None:
        """A thin link for so long."""
        self._bytes_per_s, self._slow_until_s = bytes_per_s, time.monotonic() + seconds

    def close(self) -> None:
        self._listener.close()
        self.reset()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target), 2)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                self._open |= {near, far}
            for one, other in ((near, far), (far, near)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._relay, args=(one, other), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                self._hold(len(data))
                sink.sendall(data)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        with self._lock:
            self._open -= {source, sink}

    def _hold(self, n_bytes: int) -> None:
        while (left_s := self._stalled_until_s - time.monotonic()) > 0:
            time.sleep(min(0.05, left_s))
        if time.monotonic() < self._slow_until_s:
            time.sleep(n_bytes / self._bytes_per_s)
