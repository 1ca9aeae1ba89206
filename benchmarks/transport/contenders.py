"""What is compared: each contender is a server process and a client that times round trips.

A client is a child process too, so that no contender's threads or imports weigh on another. It is
started once per turn, warms up, and prints its round trips in nanoseconds. Each end has a core of
its own.
"""

import asyncio
import select
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from dsparkctl.contract.codes import NEED_DRAFT, Op
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.framing import MAX_MESSAGE_BYTES
from dsparkctl.contract.messages import frame, hello_frame, parse_step_reply, step_head
from dsparkctl.contract.records import ReqEntry
from dsparkctl.net.ask import ask
from dsparkctl.net.dial import dialler
from dsparkctl.net.tcp import dial_tcp
from dsparkctl.net.transport import Deadline
from dsparkctl.state.reply import Asked, refusal

REPLY_BYTES = 112
"""AppHeader and the body of a STEP's reply for one request (§8.1)."""
PING_BYTES = 32


class Contender(NamedTuple):
    """A server's and a client's command; `{port}` and so on are filled in."""

    name: str
    serve: tuple[str, ...]
    ask: tuple[str, ...]


def own(name: str, verb: str) -> Contender:
    run = (sys.executable, "-m", "benchmarks.transport.contenders")
    return Contender(name, (*run, "serve", verb), (*run, "ask", verb))


def in_c(program: str, carrier: str = "C") -> list[Contender]:
    return [
        Contender(f"{carrier}, {how}", (program, "serve", spin), (program, "ask", "{port}", spin))
        for how, spin in (("spinning", "1"), ("blocking", "0"))
    ]


OURS = [own("ours, spinning", "spin"), own("ours, blocking", "block")]
FABRIC = [own("o1tcp, spinning", "o1-spin"), own("o1tcp, blocking", "o1-block")]
STEP = own("a whole STEP, spinning", "step")
OTHERS = [own("pyzmq REQ/REP", "zmq"), own("grpcio unary", "grpc"), own("asyncio streams", "aio")]


def timed(exchange: Callable[[], Any], n_rounds: int) -> None:
    for _ in range(min(30, n_rounds)):
        exchange()
    clock = time.perf_counter_ns
    found = []
    for _ in range(n_rounds):
        start = clock()
        exchange()
        found.append(clock() - start)
    print("\n".join(map(str, found)))


# --- ours -----------------------------------------------------------------------------------------


def serve_wire(scheme: str, spin: bool) -> None:
    """The worker's own end of the wire, with a reply that was made before."""
    from dspark_worker.listener import bound

    data = bound(Endpoint(scheme, "127.0.0.1", 0), time.perf_counter)
    data.prepare(MAX_MESSAGE_BYTES)
    print(data.listen().port, flush=True)
    while not data.knocked():
        time.sleep(1e-3)
    link = data.admit()
    assert link is not None
    poll = select.poll()
    poll.register(link, select.POLLIN)
    while True:
        while not link.receive():
            if not spin and link.may_sleep():
                poll.poll()
        header, body = link.message()
        size = REPLY_BYTES if len(body) else PING_BYTES
        link.send(frame(header.op, header.seq, header.session, bytes(size - 32)))
        body.release()
        link.consume()


def serve_step() -> None:
    """The worker's own server with its desk and scripted drafts."""

    from dspark_worker.desk import Desk
    from dspark_worker.listener import bound
    from dspark_worker.scripted import ScriptedDrafter
    from dspark_worker.selftest import SelfTest
    from dspark_worker.server import Server
    from dspark_worker.service import Service

    hello = live_hello()
    drafter = ScriptedDrafter(
        num_spec=hello.num_spec, window=hello.window, vocab_size=hello.vocab_size,
        row_bytes=hello.row_bytes, max_slots=hello.max_slots,
    )  # fmt: skip
    desk = Desk(hello, drafter, worker_name="bench", clock=time.perf_counter)
    data = bound(Endpoint("tcp", "127.0.0.1", 0), time.perf_counter)
    data.prepare(16 << 20)
    print(data.listen().port, flush=True)
    Server(
        desk, SelfTest(hello, drafter), data=data, admin=[],
        spin_us=1_000_000, now=time.perf_counter, service=Service.of_this_process(),
    ).serve()  # fmt: skip


def ask_wire(scheme: str, port: int, spin: bool, n_bytes: int, n_rounds: int) -> None:
    """The client's own end: one exchange with its deadline and its look for strays."""
    message = memoryview(bytearray(frame(Op.PING, 1, 1, bytes(n_bytes - 32))))
    endpoint = Endpoint(scheme, "127.0.0.1", port)
    link = dialler(endpoint, 1.0 if spin else 0.0, message)(Deadline(5.0))
    parts = [message[:96], message[96:]] if n_bytes > 96 else [message]
    timed(lambda: link.exchange(parts, Deadline(5.0)), n_rounds)


def ask_step(port: int, n_bytes: int, n_rounds: int) -> None:
    """Client codec, wire, desk, scripted drafts, and every check of the reply."""
    hello = live_hello()
    link = dial_tcp(Endpoint("tcp", "127.0.0.1", port), Deadline(5.0), 1.0)
    session = time.time_ns() & 0x7FFFFFFF | 1
    ask(link, [hello_frame(1, session, hello)], Deadline(5.0))
    n_rows = max(1, n_bytes // hello.row_bytes)
    rows = memoryview(b"\x00\x3f" * (n_rows * hello.row_bytes // 2))
    seq, pos = 1, 0

    def exchange() -> None:
        nonlocal seq, pos
        seq += 1
        entries = [ReqEntry(0, NEED_DRAFT, 5, 0, 1, pos, n_rows, 1, pos + n_rows)]
        head = step_head(seq=seq, session=session, step_id=seq, step_flags=0,
                         row_bytes=hello.row_bytes, entries=entries)  # fmt: skip
        reply = ask(link, [head, rows], Deadline(5.0))
        found = parse_step_reply(reply.body)
        asked = Asked(seq, entries, hello.num_spec, hello.window, hello.vocab_size)
        assert not refusal(found, asked)
        pos += n_rows

    timed(exchange, n_rounds)


def live_hello() -> Any:
    """The contract's live values (§6.2)."""
    from dsparkctl.config.hello import HelloParams

    return HelloParams(
        num_spec=5, window=128, hidden=5120, n_taps=3, tap_layer_ids=(37, 38, 39, 0),
        row_bytes=30720, noise_token_id=128799, vocab_size=129280, max_model_len=1 << 30,
        max_rows_per_step=512, drafter_identity="00" * 32,
    ).record()  # fmt: skip


# --- others ---------------------------------------------------------------------------------------


def serve_zmq() -> None:
    import zmq

    sock = zmq.Context(1).socket(zmq.REP)
    print(sock.bind_to_random_port("tcp://127.0.0.1"), flush=True)
    reply = bytes(REPLY_BYTES)
    while True:
        sock.recv(copy=False)
        sock.send(reply)


def ask_zmq(port: int, n_bytes: int, n_rounds: int) -> None:
    import zmq

    sock = zmq.Context(1).socket(zmq.REQ)
    sock.connect(f"tcp://127.0.0.1:{port}")
    message = bytes(n_bytes)

    def exchange() -> None:
        sock.send(message, copy=False)
        sock.recv()

    timed(exchange, n_rounds)


_LIMIT = [("grpc.max_receive_message_length", 32 << 20), ("grpc.max_send_message_length", 32 << 20)]


def serve_grpc() -> None:
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    reply = bytes(REPLY_BYTES)
    server = grpc.server(ThreadPoolExecutor(1), options=_LIMIT)
    handler = grpc.unary_unary_rpc_method_handler(lambda _request, _context: reply)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("bench", {"ask": handler}),)
    )
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()


def ask_grpc(port: int, n_bytes: int, n_rounds: int) -> None:
    import grpc

    call = grpc.insecure_channel(f"127.0.0.1:{port}", options=_LIMIT).unary_unary("/bench/ask")
    message = bytes(n_bytes)
    timed(lambda: call(message), n_rounds)


def serve_aio() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reply = struct.pack("<I", REPLY_BYTES) + bytes(REPLY_BYTES)
        while True:
            (n,) = struct.unpack("<I", await reader.readexactly(4))
            await reader.readexactly(n)
            writer.write(reply)
            await writer.drain()

    async def main() -> None:
        server = await asyncio.start_server(talk, "127.0.0.1", 0, limit=32 << 20)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    asyncio.run(main())


def ask_aio(port: int, n_bytes: int, n_rounds: int) -> None:
    async def main() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=32 << 20)
        message = struct.pack("<I", n_bytes) + bytes(n_bytes)
        clock, found = time.perf_counter_ns, []
        for i in range(n_rounds + 30):
            start = clock()
            writer.write(message)
            await writer.drain()
            (n,) = struct.unpack("<I", await reader.readexactly(4))
            await reader.readexactly(n)
            if i >= 30:
                found.append(clock() - start)
        print("\n".join(map(str, found)))

    asyncio.run(main())


def main(words: list[str]) -> None:
    if words[0] == "serve":
        served: dict[str, Callable[[], None]] = {
            "spin": lambda: serve_wire("tcp", True),
            "block": lambda: serve_wire("tcp", False),
            "o1-spin": lambda: serve_wire("o1tcp", True),
            "o1-block": lambda: serve_wire("o1tcp", False),
            "step": serve_step,
            "zmq": serve_zmq,
            "grpc": serve_grpc,
            "aio": serve_aio,
        }
        served[words[1]]()
        return
    verb, port, n_bytes, n_rounds = words[1], *map(int, words[2:5])
    asked: dict[str, Callable[[], None]] = {
        "spin": lambda: ask_wire("tcp", port, True, n_bytes, n_rounds),
        "block": lambda: ask_wire("tcp", port, False, n_bytes, n_rounds),
        "o1-spin": lambda: ask_wire("o1tcp", port, True, n_bytes, n_rounds),
        "o1-block": lambda: ask_wire("o1tcp", port, False, n_bytes, n_rounds),
        "step": lambda: ask_step(port, n_bytes, n_rounds),
        "zmq": lambda: ask_zmq(port, n_bytes, n_rounds),
        "grpc": lambda: ask_grpc(port, n_bytes, n_rounds),
        "aio": lambda: ask_aio(port, n_bytes, n_rounds),
    }
    asked[verb]()


def started(contender: Contender) -> tuple[subprocess.Popen[str], int]:
    """A server and its port."""
    pinned = ("taskset", "-c", "0", *contender.serve)
    process = subprocess.Popen(pinned, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def round_trips(contender: Contender, port: int, n_bytes: int, n_rounds: int) -> list[float]:
    """Seconds each."""
    ask = [word.format(port=port) for word in contender.ask]
    if ask[0] == sys.executable:
        ask += [str(port), str(n_bytes), str(n_rounds)]
    else:
        ask += [str(n_bytes), str(REPLY_BYTES if n_bytes > PING_BYTES else PING_BYTES)]
        ask += [str(n_rounds + 30)]
    pinned = ["taskset", "-c", "1", *ask]
    done = subprocess.run(pinned, capture_output=True, text=True, check=True, timeout=300)
    return [int(line) / 1e9 for line in done.stdout.split()][-n_rounds:]


if __name__ == "__main__":
    main(sys.argv[1:])
