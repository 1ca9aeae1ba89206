"""Which listener probe, stats and reset may talk to (R37)."""

from pathlib import Path

import pytest

from dsparkctl.cli.endpoints import choose_endpoint
from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.config.errors import ConfigError, ReadError

CONFIG = """
version: 1
worker:
  checkpoint: /srv/checkpoint
  identity_from_files: true
  allow_any_address: true
  listen: {listen}
  admin: [{admin}]
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def configured(
    listen: str = "tcp://127.0.0.1:7000", admin: str = "tcp://127.0.0.1:7001, tcp://10.0.0.2:7001"
) -> Path:
    path = Path("dspark.yaml")
    path.write_text(CONFIG.format(listen=listen, admin=admin))
    return path


def refused(text: str | None, config: Path | None = None) -> str:
    with pytest.raises(Stop) as caught:
        choose_endpoint(text, config, take_over=False)
    assert caught.value.code == Exit.USAGE
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_by_itself_it_is_the_first_admin_listener_of_the_configuration() -> None:
    configured()
    assert str(choose_endpoint(None, None, take_over=False)) == "tcp://127.0.0.1:7001"


def test_another_configuration_can_be_named() -> None:
    path = configured().rename("other.yaml")
    assert choose_endpoint(None, path, take_over=False).port == 7001


def test_without_a_configuration_it_is_where_a_worker_listens_by_itself() -> None:
    assert str(choose_endpoint(None, None, take_over=False)) == "tcp://127.0.0.1:18630"


def test_a_named_configuration_must_be_there() -> None:
    with pytest.raises(ReadError):
        choose_endpoint("tcp://127.0.0.1:1", Path("absent.yaml"), take_over=False)


def test_a_broken_configuration_cannot_say_which_endpoint_is_the_engines() -> None:
    Path("dspark.yaml").write_text("version: 2\n")
    with pytest.raises(ConfigError):
        choose_endpoint("tcp://127.0.0.1:1", None, take_over=False)


def test_without_an_admin_listener_an_endpoint_must_be_named() -> None:
    configured(admin="")
    assert "worker.admin is empty" in refused(None)
    assert choose_endpoint("tcp://127.0.0.1:9", None, take_over=False).port == 9


@pytest.mark.parametrize(
    "text", ["tcp://127.0.0.1:7000", "tcp://localhost:7000", "tcp://[::ffff:127.0.0.1]:7000"]
)
def test_the_configured_data_listener_is_refused_however_it_is_written(text: str) -> None:
    """R37: and the line says why, and what to do."""
    configured()
    said = refused(text)
    assert "is the data listener" in said
    assert "closes the engine's connection" in said
    assert "admin listener tcp://127.0.0.1:7001" in said
    assert "--take-over" in said
    assert choose_endpoint(text, None, take_over=True).port == 7000


def test_a_worker_that_listens_everywhere_is_refused_on_every_address() -> None:
    """R37."""
    configured(listen="tcp://0.0.0.0:7000")
    assert "is the data listener" in refused("tcp://10.202.28.1:7000")


def test_the_same_port_of_another_address_is_not_the_data_listener() -> None:
    configured()
    assert choose_endpoint("tcp://127.0.0.2:7000", None, take_over=False).port == 7000


@pytest.mark.parametrize("port", [18620, 18621])
def test_the_engines_ports_are_refused_on_every_machine(port: int) -> None:
    """R37, §5."""
    text = f"tcp://10.202.28.1:{port}"
    assert f"{port} is" in refused(text)
    configured()
    assert "--take-over" in refused(text)
    assert choose_endpoint(text, None, take_over=True).port == port


def test_an_admin_listener_on_an_engines_port_is_refused_as_well() -> None:
    """R37: by itself, too; the line then offers no listener that is refused."""
    configured(admin="tcp://127.0.0.1:18621")
    assert "use the admin listener" not in refused(None)


@pytest.mark.parametrize("text", ["tcp://0.0.0.0:7", "tcp://[::]:7", "tcp://:7", "tcp://host:0"])
def test_what_only_a_listener_can_mean_is_refused(text: str) -> None:
    assert "is for listening" in refused(text)


def test_a_transport_that_cannot_be_used_here_is_a_usage_error() -> None:
    assert "o1rdma is not usable here" in refused("o1rdma://10.0.0.1:7")
