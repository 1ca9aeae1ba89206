"""What the demo can be asked to do."""

import math
from pathlib import Path

import pytest

from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.demo.options import OptionError, Options, require_sense
from dsparkctl.net.transport import NotInThisBuild

THERE = Endpoint("tcp", "127.0.0.1", 1)
PLAIN = Options(None, Path())


def test_an_outage_brings_more_requests_and_paced_rounds_unless_told_otherwise() -> None:
    """The client tries again after 1 s, 3 s, 7 s (§10): the run has to last so long."""
    outage = PLAIN._replace(shows_outage=True)
    assert (PLAIN.requests, PLAIN.step_s) == (8, 0.0)
    assert (outage.requests, outage.step_s) == (32, 0.025)
    told = outage._replace(n_requests=5, step_ms=0)
    assert (told.requests, told.step_s) == (5, 0.0)


@pytest.mark.parametrize("options", [PLAIN, PLAIN._replace(shows_outage=True, seed=-1)])
def test_options_that_make_sense(options: Options) -> None:
    require_sense(options)
    require_sense(options._replace(endpoint=THERE, shows_outage=False))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (PLAIN._replace(endpoint=THERE, shows_outage=True), "--show-outage: not with --endpoint"),
        (PLAIN._replace(endpoint=Endpoint("tcp", "h", 0)), "--endpoint: .* tcp://h:0"),
        (PLAIN._replace(timeout_ms=math.nan), "--timeout-ms"),
        (PLAIN._replace(step_ms=math.inf), "--step-ms"),
        (PLAIN._replace(max_seconds=math.nan), "--max-seconds"),
    ],
)
def test_options_that_cannot_be_meant_are_named(options: Options, words: str) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        require_sense(options)
    assert "\n" not in str(caught.value)


def test_a_transport_that_cannot_be_used_is_refused_before_anything_starts() -> None:
    with pytest.raises(NotInThisBuild):
        require_sense(PLAIN._replace(endpoint=Endpoint("o1rdma", "h", 1)))
