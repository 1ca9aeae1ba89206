"""`probe --from`: what a host measures and how far it is believed (R38)."""

import pytest

from dsparkctl.contract.codes import FrameStatus
from dsparkctl.net.ping import Course, Refused, Tally
from dsparkctl.net.transport import Broken
from dsparkctl.rollout.host import CommandFailed, HostError
from dsparkctl.rollout.ping_from import link_endpoint, ping_from
from tests.unit.net.peers import answering, peer
from tests.unit.rollout.doctor.seeing import fleet
from tests.unit.rollout.local import LocalHost, as_host, fake_command

COURSE = Course(n=5, pause_s=0.0, payload_bytes=100, timeout_s=2.0)


def test_round_trips_are_measured_there() -> None:
    host, tally = LocalHost(), Tally()
    with peer(answering()) as endpoint:
        ping_from(as_host(host), endpoint, COURSE, tally)
    assert len(tally.rtt_us) == 5
    assert tally.lost == []
    assert host.ran[0][:3] == ("python3", "-I", "-")


def test_nobody_there_and_a_refusal_come_back_as_what_they_are() -> None:
    with peer(answering()) as endpoint:
        pass
    with pytest.raises(Broken, match="nobody listens there"):
        ping_from(as_host(LocalHost()), endpoint, COURSE, Tally())
    with (
        peer(answering(status=FrameStatus.NO_SESSION)) as endpoint,
        pytest.raises(Refused) as caught,
    ):
        ping_from(as_host(LocalHost()), endpoint, COURSE, Tally())
    assert (caught.value.status, caught.value.op.name) == (FrameStatus.NO_SESSION, "PING")


@pytest.mark.parametrize(
    "said",
    ["hello", "{}", '{"rtt_us": [-1], "lost": []}', '{"rtt_us": [NaN], "lost": []}'],
)
def test_a_host_that_says_something_else_is_not_believed(
    tmp_path_factory: pytest.TempPathFactory, said: str
) -> None:
    path = fake_command(tmp_path_factory.mktemp("host") / "bin", "python3", f"echo '{said}'")
    host = LocalHost(prefix=("env", f"PATH={path}"))
    with peer(answering()) as endpoint, pytest.raises(HostError, match="something else"):
        ping_from(as_host(host), endpoint, COURSE, Tally())


def test_without_a_python_the_commands_own_error_comes() -> None:
    host = LocalHost(prefix=("env", "PATH=/nowhere"))
    with peer(answering()) as endpoint, pytest.raises(CommandFailed):
        ping_from(as_host(host), endpoint, COURSE, Tally())


def test_the_endpoint_is_the_admin_listener_on_the_link_from_its_own_end() -> None:
    assert str(link_endpoint(fleet(), "spark-a")) == ("tcp://10.202.28.1:18630?bind=10.202.28.2")
    assert link_endpoint(fleet(), "spark-b") is None
