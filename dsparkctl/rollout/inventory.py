"""`dspark.yaml` as an Ansible inventory, in the JSON that `ansible-inventory --list` knows.

Decides groups and variables: the worker's host in `dspark_worker`, the ranks in `dspark_client`.
Pure. The roles get the very bytes that a deploy would write, so that both leave equal files.
"""

from typing import Any

from dsparkctl.config.fleet import Fleet
from dsparkctl.rollout.layout import UNIT, Layout
from dsparkctl.rollout.render import worker_config, worker_unit


def inventory(fleet: Fleet) -> dict[str, Any]:
    """Groups, hosts and their variables."""
    hosts = {name: _connection(fleet, name) for name in fleet.hosts}
    groups: dict[str, Any] = {"all": {"children": ["dspark_worker", "dspark_client"]}}
    worker = fleet.worker.host
    groups["dspark_worker"] = {"hosts": [worker] if worker else [], "vars": _worker(fleet)}
    ranks = list(fleet.engine.ranks) if fleet.engine else []
    groups["dspark_client"] = {"hosts": ranks, "vars": _client(fleet)}
    return {"_meta": {"hostvars": hosts}, **groups}


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


def _worker(fleet: Fleet) -> dict[str, Any]:
    layout = Layout(fleet.release.root)
    return {
        "dspark_root": str(layout.root),
        "dspark_user": fleet.worker.user,
        "dspark_unit": UNIT,
        "dspark_python": str(fleet.release.python),
        "dspark_unit_text": worker_unit(fleet).decode(),
        "dspark_config_text": worker_config(fleet).decode(),
    }


def _client(fleet: Fleet) -> dict[str, Any]:
    if fleet.engine is None:
        return {}
    engine = fleet.engine
    return {
        "dspark_env_file": str(engine.env_file),
        "dspark_engine_python": str(engine.python) if engine.python else "",
        "dspark_engine_kind": engine.kind,
        "dspark_engine_unit": engine.unit or "",
    }
