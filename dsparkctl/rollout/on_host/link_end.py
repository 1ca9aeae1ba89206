"""Both ends of a measured transfer over a direct link; bounded in bytes and time.

Takes {role: answer|ask, address, port, bind, sizes: [[bytes, times], …]}. `answer` acknowledges
each message of one connection with one byte; `ask` sends them and says {bytes: median µs}.
"""

import json
import socket
import statistics
import sys
import time
from typing import Any, Dict

TIMEOUT_S = 10.0
MAX_BYTES = 64 << 20


def take(sock: socket.socket, n_bytes: int) -> bytes:
    found = bytearray()
    while len(found) < n_bytes:
        piece = sock.recv(min(1 << 20, n_bytes - len(found)))
        if not piece:
            return bytes(found)
        found += piece
    return bytes(found)


def answer(asked: Dict[str, Any]) -> Dict[str, Any]:
    n_messages = 0
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.settimeout(TIMEOUT_S)
        listener.bind((asked["address"], asked["port"]))
        listener.listen(1)
        sock, _ = listener.accept()
        with sock:
            sock.settimeout(TIMEOUT_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while len(head := take(sock, 4)) == 4:
                n_bytes = int.from_bytes(head, "little")
                if n_bytes > MAX_BYTES or len(take(sock, n_bytes)) < n_bytes:
                    break
                sock.sendall(b"\1")
                n_messages += 1
    return {"messages": n_messages}


def ask(asked: Dict[str, Any]) -> Dict[str, Any]:
    end_s = time.monotonic() + TIMEOUT_S
    while True:
        try:
            sock = socket.create_connection(
                (asked["address"], asked["port"]), TIMEOUT_S, (asked["bind"], 0)
            )
            break
        except OSError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.1)
    found = {}
    with sock:
        sock.settimeout(TIMEOUT_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for n_bytes, times in asked["sizes"]:
            message = n_bytes.to_bytes(4, "little") + bytes(n_bytes)
            spent = []
            for _ in range(times):
                start_s = time.perf_counter()
                sock.sendall(message)
                if take(sock, 1) != b"\1":
                    sys.exit("the far end went away")
                spent.append((time.perf_counter() - start_s) * 1e6)
                if time.monotonic() > end_s + TIMEOUT_S:
                    break
            found[str(n_bytes)] = statistics.median(spent)
    return {"median_us": found}


def main() -> None:
    asked = json.loads(sys.argv[1])
    try:
        found = answer(asked) if asked["role"] == "answer" else ask(asked)
    except OSError as error:
        sys.exit(f"{asked['address']} port {asked['port']}: {error}")
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
