"""Which endpoints can be dialled (§5)."""

import contextlib

import pytest

from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.net.dial import dial, require_usable
from dsparkctl.net.fabric import library
from dsparkctl.net.transport import Deadline, NotInThisBuild
from tests.unit.net.peers import answering, peer


@pytest.mark.parametrize("scheme", ["o1tcp", "o1rdma"])
def test_without_libfabric_ofl_is_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    def missing() -> library.Library:
        raise library.Missing("install libfabric-dev")

    monkeypatch.setattr(library, "load", missing)
    endpoint = Endpoint(scheme, "10.202.28.1", 18620, "10.202.28.2")
    for attempt in (lambda: require_usable(endpoint), lambda: dial(endpoint, Deadline(1))):
        with pytest.raises(NotInThisBuild) as caught:
            attempt()
        assert str(caught.value) == (
            f"{endpoint}: {scheme} is not usable here: install libfabric-dev"
        )


def test_tcp_is_dialled() -> None:
    with peer(answering()) as endpoint, contextlib.closing(dial(endpoint, Deadline(5))) as link:
        assert link.endpoint == endpoint
