"""`dspark.yaml` as an Ansible inventory, in the JSON that `ansible-inventory --list` knows.

Decides groups and variables: the worker's host in `dspark_worker`, the ranks in `dspark_client`.
Pure. The roles get the very bytes that a deploy would write, so that both leave equal files.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from dsparkctl.config.fleet import Fleet
from dsparkctl.rollout import engines, env_file
from dsparkctl.rollout.layout import UNIT, Layout
from dsparkctl.rollout.release import Release
from dsparkctl.rollout.render import worker_config, worker_unit
from dsparkctl.rollout.sparks import STAGE
from dsparkctl.rollout.wheelhouse import OURS, Wheel


def inventory(
    fleet: Fleet, wheels: tuple[Wheel, ...], made_s: float, values: Mapping[str, str] | None
) -> dict[str, Any]:
    """Groups, hosts and their variables. `made_s` is the Unix time of the wheels, which names the
    release: the same wheels, the same release. `values` are the client's variables."""
    hosts = {name: _connection(fleet, name) for name in fleet.hosts}
    worker = fleet.worker.host
    ranks = list(fleet.engine.ranks) if fleet.engine and values is not None else []
    return {
        "_meta": {"hostvars": hosts},
        "all": {"children": ["dspark_worker", "dspark_client"]},
        "dspark_worker": {
            "hosts": [worker] if worker else [],
            "vars": _worker(fleet, wheels, made_s),
        },
        "dspark_client": {
            "hosts": ranks,
            "vars": _client(fleet, wheels, values) if values is not None else {},
        },
    }


def _connection(fleet: Fleet, name: str) -> dict[str, Any]:
    host = fleet.hosts[name]
    found: dict[str, Any] = {
        "ansible_host": host.ssh or name,
        "ansible_become": host.sudo,
        "ansible_python_interpreter": str(fleet.release.python),
    }
    if host.user is not None:
        found["ansible_user"] = host.user
    if host.port is not None:
        found["ansible_port"] = host.port
    if host.jump is not None:
        found["ansible_ssh_common_args"] = f"-J {host.jump}"
    return found


def _worker(fleet: Fleet, wheels: tuple[Wheel, ...], made_s: float) -> dict[str, Any]:
    layout = Layout(fleet.release.root)
    torch = next(wheel for wheel in wheels if wheel.name == "torch")
    release = Release(wheels, worker_config(fleet), worker_unit(fleet), torch.python_tag)
    name = release.new_id(datetime.fromtimestamp(made_s, UTC))
    return {
        "dspark_root": str(layout.root),
        "dspark_user": fleet.worker.user,
        "dspark_unit": UNIT,
        "dspark_python": str(fleet.release.python),
        "dspark_version": release.version,
        "dspark_release": name,
        "dspark_wheels": [str(wheel.path.resolve()) for wheel in wheels],
        "dspark_unit_text": release.unit.decode(),
        "dspark_config_text": release.config.decode(),
        "dspark_manifest_text": release.manifest().decode(),
    }


def _client(fleet: Fleet, wheels: tuple[Wheel, ...], values: Mapping[str, str]) -> dict[str, Any]:
    engine = fleet.engine
    assert engine is not None
    wheel = next(wheel for wheel in wheels if wheel.name == OURS)
    extra = engines.drop_in(engine)
    return {
        "dspark_wheel": str(wheel.path.resolve()),
        "dspark_stage": str(STAGE / wheel.sha256[:16]),
        "dspark_engine_python": str(engine.python or ""),
        "dspark_mount": str(engine.mount or ""),
        "dspark_mount_real": f"{engine.mount}.{wheel.sha256[:16]}" if engine.mount else "",
        "dspark_env_file": str(engine.env_file),
        "dspark_env_text": env_file.write(values).decode(),
        "dspark_drop_in": str(extra[0]) if extra else "",
        "dspark_drop_in_text": extra[1].decode() if extra else "",
    }
