"""Stands in for vLLM on a Spark of the testbed: `python3 stub_engine.py RANK HELLO PEER`.

Rank 0 opens the rendezvous, reads the client's variables as rank 0's client does, says HELLO and
sends a STEP five times a second; rank 1 joins it. Runs on the client that a deploy put there, with
nothing but the standard library beside it.
"""

import os
import secrets
import socket
import sys
import time
from pathlib import Path

from dsparkctl.client.environment import read_environment
from dsparkctl.contract.layout import unpack
from dsparkctl.contract.messages import hello_frame, step_head
from dsparkctl.contract.records import Hello, ReqEntry
from dsparkctl.net.dial import dial
from dsparkctl.net.transport import Deadline, TransportError

RENDEZVOUS = 29501


def rank_0(hello: Hello) -> None:
    with socket.create_server(("0.0.0.0", RENDEZVOUS)):
        settings = read_environment(os.environ)
        own = hello._replace(drafter_identity=settings["IDENTITY"])
        while True:
            try:
                draft(own, settings["ENDPOINT"])
            except TransportError as error:
                sys.stderr.write(f"{error}\n")
                time.sleep(1)


def draft(own: Hello, endpoint: object) -> None:
    session = secrets.randbits(32) | 1
    link = dial(endpoint, Deadline(5))  # type: ignore[arg-type]
    link.exchange([hello_frame(1, session, own)], Deadline(5))
    entry = ReqEntry(*(0 for _ in ReqEntry._fields))
    for seq in range(2, 1 << 31):
        head = step_head(
            seq=seq, session=session, step_id=seq, step_flags=0, row_bytes=own.row_bytes,
            entries=[entry],
        )  # fmt: skip
        link.exchange([head], Deadline(5))
        time.sleep(0.2)


def rank_1(peer: str) -> None:
    with socket.create_connection((peer, RENDEZVOUS), timeout=30):
        while True:
            time.sleep(60)


if __name__ == "__main__":
    if sys.argv[1] == "0":
        rank_0(unpack(Hello, Path(sys.argv[2]).read_bytes()))
    else:
        rank_1(sys.argv[3])
