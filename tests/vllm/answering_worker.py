"""A real worker, desk and sockets and all, whose drafter knows the answer if it is asked right.

Decides what a draft is: the drafter reads every token of its window from the tap rows, by all three
taps, finds the one known text that has these tokens at these positions and the anchor behind them,
and drafts how it goes on. A row that is missing, stale or at the wrong place therefore ends in a
fault (INTERNAL), never in a draft. Now and then one token is wrong on purpose, so that the target
rejects.

    python -m tests.vllm.answering_worker TARGET_FOLDER TEXTS_JSON DATA_PORT ADMIN_PORT
"""

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from dspark_worker.data_link import TcpListener
from dspark_worker.desk import Desk
from dspark_worker.drafter import Append, Draft, DraftRequest, Fault
from dspark_worker.selftest import SelfTest
from dspark_worker.server import Server
from dspark_worker.service import Service
from dspark_worker.sockets import bound, listening
from dsparkctl.config.hello import HelloParams
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.framing import MAX_MESSAGE_BYTES
from tests.vllm import tiny

IDENTITY = bytes(range(32))
"""Both sides of the rig say this; there is no checkpoint to compute it from."""

UNKNOWN = -1


class AnsweringDrafter:
    """Tokens of every slot's window by position mod W; `texts` are the only answers there are."""

    backend = "answering"

    def __init__(self, embedding: Tensor, texts: Sequence[Sequence[int]]) -> None:
        self._embedding = embedding.float()
        # One text may be the beginning of another: the one that knows more answers.
        self._texts = sorted((list(text) for text in texts), key=len, reverse=True)
        self._tokens = [[UNKNOWN] * tiny.WINDOW for _ in range(tiny.SLOTS + 1)]

    def append(self, parts: Sequence[Append]) -> list[Fault | None]:
        for part in parts:
            tokens = self._read(part.rows)
            for i, token in enumerate(tokens):
                self._tokens[part.slot][(part.first_pos + i) % tiny.WINDOW] = token
        return [None] * len(parts)

    def draft(
        self, requests: Sequence[DraftRequest], *, max_model_len: int, want_margin: bool
    ) -> list[Draft | Fault]:
        return [self._draft(request) for request in requests]

    def _read(self, rows: memoryview) -> list[int]:
        """The token of each row, UNKNOWN where the taps do not agree."""
        taps = torch.frombuffer(bytearray(rows), dtype=torch.bfloat16)
        taps = taps.view(-1, len(tiny.TAPS), tiny.HIDDEN).float()
        tokens = torch.cdist(taps.flatten(0, 1), self._embedding).argmin(dim=1)
        by_row = tokens.view(-1, len(tiny.TAPS))
        agreed = (by_row == by_row[:, :1]).all(dim=1)
        # A tap twice would agree with itself: no two are the same vector.
        agreed &= (taps[:, 0] != taps[:, 1]).any(dim=1) & (taps[:, 1] != taps[:, 2]).any(dim=1)
        return [int(t) for t in torch.where(agreed, by_row[:, 0], UNKNOWN)]

    def _draft(self, request: DraftRequest) -> Draft | Fault:
        lo, anchor = request.lo_pos, request.anchor_pos
        if request.slot == tiny.SLOTS:  # the self-test's rows are no tokens
            return _answer([])
        held = [self._tokens[request.slot][pos % tiny.WINDOW] for pos in range(lo, anchor)]
        held.append(request.anchor_token)
        for text in self._texts:
            # The engine's last round of a text may go beyond it: what is known must agree.
            if lo < len(text) and text[lo : anchor + 1] == held[: len(text) - lo]:
                ids = text[anchor + 1 : anchor + 1 + request.n_out]
                if anchor % 5 == 2 and len(ids) > 3:
                    ids[anchor % 4] = (ids[anchor % 4] + 1) % tiny.VOCAB
                return _answer(ids)
        return Fault(f"no text has {held} at {lo}")


def _answer(ids: list[int]) -> Draft:
    ids = ids + [0] * (tiny.N - len(ids))
    return Draft(ids, [1 / (2 + j) for j in range(tiny.N)], [1.0] * tiny.N)


def _run(target: Path, texts: Path, data_port: int, admin_port: int) -> None:
    embedding = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    drafter = AnsweringDrafter(embedding, json.loads(texts.read_text(encoding="utf-8")))
    own = HelloParams(
        num_spec=tiny.N,
        window=tiny.WINDOW,
        hidden=tiny.HIDDEN,
        n_taps=len(tiny.TAPS),
        tap_layer_ids=(*tiny.TAPS, 0),
        row_bytes=len(tiny.TAPS) * tiny.HIDDEN * 2,
        noise_token_id=tiny.NOISE,
        vocab_size=tiny.VOCAB,
        max_model_len=tiny.MAX_LEN,
        max_slots=tiny.SLOTS,
        max_rows_per_step=tiny.SLOTS * tiny.WINDOW,
        drafter_identity=IDENTITY.hex(),
    ).record()
    clock = time.perf_counter
    desk = Desk(own, drafter, worker_name="answering", clock=clock, about=dict)
    self_test = SelfTest(own, drafter)
    assert not self_test.run()
    desk.stats.self_tested(True, clock())
    data = TcpListener(Endpoint("tcp", "127.0.0.1", data_port), clock)
    data.prepare(MAX_MESSAGE_BYTES)
    admin = bound(Endpoint("tcp", "127.0.0.1", admin_port))
    server = Server(
        desk,
        self_test,
        data=data,
        admin=[admin],
        spin_us=0,
        now=clock,
        service=Service({}, pid=0),
    )
    ready = f"{data.listen()} {listening(admin)}"
    sys.stdout.write(f"{ready}\n")
    sys.stdout.flush()
    threading.Thread(target=_end_with_starter, daemon=True).start()
    server.serve()


def _end_with_starter() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    _run(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
