"""Which endpoints this build can dial (§5)."""

import contextlib

import pytest

from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.net.dial import dial, require_built
from dsparkctl.net.transport import Deadline, NotInThisBuild
from tests.unit.net.peers import answering, peer


@pytest.mark.parametrize("scheme", ["o1tcp", "o1rdma"])
def test_the_ofl_transports_are_not_in_this_build_and_say_so(scheme: str) -> None:
    endpoint = Endpoint(scheme, "10.202.28.1", 18620, "10.202.28.2")
    for attempt in (lambda: require_built(endpoint), lambda: dial(endpoint, Deadline(1))):
        with pytest.raises(NotInThisBuild) as caught:
            attempt()
        assert f"{endpoint}: {scheme} is not in this build" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_tcp_is_dialled() -> None:
    with peer(answering()) as endpoint, contextlib.closing(dial(endpoint, Deadline(5))) as link:
        assert link.endpoint == endpoint
