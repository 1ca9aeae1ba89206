"""The worker's answer: as its desk gives it, or as a worker that fails would (§9, §10).

Decides what a failing worker does with a request: refuse it, apply it and refuse it, or answer with
values that no sound worker sends.
"""

import random
from typing import Final

from dsparkctl.contract.codes import Op
from dsparkctl.contract.messages import frame, parse_header
from dsparkctl.simulation.faults import Kind, Weather
from dsparkctl.simulation.spoil import Sheet, fail_entries, refused
from dsparkctl.simulation.worker import Worker
from dsparkctl.simulation.world import Terms

_FATAL: Final = (1, 2, 3, 9)
_OK: Final = bytes(4)
_STATUS: Final = slice(24, 28)
"""Of a frame: AppHeader.status."""


class Answering:
    """Stands in front of the worker."""

    def __init__(self, terms: Terms, weather: Weather, draw: random.Random) -> None:
        self._terms = terms
        self._weather = weather
        self._draw = draw

    def answer(self, worker: Worker, request: bytes, kind: Kind | None) -> bytes:
        """The reply; `kind` is the fault that this message meets."""
        weather = self._weather
        if weather.failing is not None:
            reply = self._failed(worker, request, weather.failing.how)
        else:
            reply = worker.answer(request)
        if kind is Kind.REFUSED and reply[_STATUS] == _OK:
            sheet = Sheet(request, reply, self._terms.num_spec, self._terms.window)
            weather.happened(kind, refused(sheet, self._draw))
            return bytes(sheet.data)
        if kind is Kind.FATAL:
            status = self._draw.choice(_FATAL)
            weather.happened(kind, str(status))
            return _with_status(reply, status)
        return reply

    def _failed(self, worker: Worker, request: bytes, how: str) -> bytes:
        header = parse_header(request)
        what, _, more = how.partition(" ")
        if header.op != Op.STEP:
            reply = worker.answer(request)
            if what == "frame" and self._draw.random() < 0.3:
                self._weather.happened(Kind.FAILING, f"HELLO {how}")
                return _with_status(reply, int(more[0]))
            return reply
        if what == "frame":
            self._weather.happened(Kind.FAILING, how)
            if not more.endswith("not applied"):
                worker.answer(request)
            return frame(header.op, header.seq, header.session, b"", int(more[0]))
        if what == "drafter":
            self._weather.happened(Kind.FAILING, how)
            worker.drafter.trouble = more
            reply = worker.answer(request)
            worker.drafter.trouble = ""
            return reply
        reply = worker.answer(request)
        if reply[_STATUS] != _OK:
            return reply
        sheet = Sheet(request, reply, self._terms.num_spec, self._terms.window)
        entries = range(1 if what == "first" else len(sheet.asked))
        if fail_entries(sheet, int(more[-1]), entries):
            self._weather.happened(Kind.FAILING, how)
        return bytes(sheet.data)


def _with_status(reply: bytes, status: int) -> bytes:
    return reply[:24] + status.to_bytes(4, "little") + reply[28:]
