"""The programs that run on hosts, for real on this one."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.rollout.conftest import Program


def said(run: Program, name: str, asked: dict[str, Any]) -> dict[str, Any]:
    code, out, err = run(name, asked)
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


# --- the lock -------------------------------------------------------------------------------------


def lock(run: Program, path: Path, verb: str, token: str, lease_s: float = 60.0) -> dict[str, Any]:
    asked = {"verb": verb, "path": str(path), "token": token, "owner": f"owner of {token}"}
    return said(run, "lock", asked | {"lease_s": lease_s})


def test_a_lock_is_had_by_one_and_freed_by_it_alone(run_program: Program, tmp_path: Path) -> None:
    path = tmp_path / "new" / "lock"
    assert lock(run_program, path, "take", "a")["held"]
    second = lock(run_program, path, "take", "b")
    assert (second["held"], second["owner"]) == (False, "owner of a")
    lock(run_program, path, "drop", "b")
    assert path.exists()
    lock(run_program, path, "drop", "a")
    assert not path.exists()
    assert lock(run_program, path, "look", "") == {"held": False, "owner": None, "age_s": None}


def test_a_lock_that_nobody_touches_ends_with_its_lease(
    run_program: Program, tmp_path: Path
) -> None:
    path = tmp_path / "lock"
    lock(run_program, path, "take", "a")
    os.utime(path, (time.time() - 100, time.time() - 100))
    assert not lock(run_program, path, "take", "b", lease_s=200)["held"]
    lock(run_program, path, "touch", "a")
    assert not lock(run_program, path, "take", "b", lease_s=50)["held"]
    os.utime(path, (time.time() - 100, time.time() - 100))
    assert lock(run_program, path, "take", "b", lease_s=50)["held"]
    assert not lock(run_program, path, "touch", "a")["held"]
    assert [one.name for one in tmp_path.iterdir()] == ["lock"]


def test_of_many_who_want_an_old_lock_exactly_one_gets_it(
    run_program: Program, tmp_path: Path
) -> None:
    path = tmp_path / "lock"
    path.write_text("{}")
    os.utime(path, (0, 0))
    held: list[bool] = []
    threads = [
        threading.Thread(
            target=lambda n=n: held.append(lock(run_program, path, "take", f"t{n}")["held"])
        )
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(held) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_a_lock_file_that_says_nothing_is_held_until_its_lease_ends(
    run_program: Program, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "lock"
    path.write_text(text)
    assert not lock(run_program, path, "take", "a")["held"]
    lock(run_program, path, "break", "")
    assert not path.exists()


# --- facts ----------------------------------------------------------------------------------------


def worker(run: Program, root: Path) -> dict[str, Any]:
    asked = {
        "root": str(root),
        "unit": str(root / "dspark-worker.service"),
        "user": "nobody",
        "folders": [".", "incoming"],
        "paths": {"checkpoint": "/tmp", "receipt": "/nonexistent"},
    }
    return said(run, "worker_facts", asked)


def test_the_facts_of_a_bare_host(run_program: Program, tmp_path: Path) -> None:
    found = worker(run_program, tmp_path / "none" / "opt")
    assert found["python"][:2] == list(sys.version_info[:2])
    assert found["has_user"] is True
    assert found["folders"] == {".": None, "incoming": None}
    assert (found["current"], found["releases"], found["unit"]["text"]) == (None, [], None)
    assert found["paths"] == {"checkpoint": "folder", "receipt": None}
    assert found["free_bytes"] > 0


def test_a_half_release_an_altered_one_and_a_whole_one_are_told_apart(
    run_program: Program, tmp_path: Path
) -> None:
    import hashlib

    text = "version: 1\n"
    manifest = {"digest": "d", "files": {"dspark.yaml": hashlib.sha256(text.encode()).hexdigest()}}
    for name in ("half", "whole", "altered"):
        here = tmp_path / "releases" / name
        here.mkdir(parents=True)
        (here / "manifest.json").write_text(json.dumps(manifest))
        (here / "dspark.yaml").write_text(text if name != "altered" else "version: 2\n")
        if name != "half":
            (here / ".complete").touch()
    (tmp_path / "current").symlink_to("releases/whole")
    found = worker(run_program, tmp_path)
    states = {one["id"]: (one["is_complete"], one["altered"]) for one in found["releases"]}
    assert states == {
        "half": (False, []), "whole": (True, []), "altered": (True, ["dspark.yaml"])
    }  # fmt: skip
    assert found["current"] == "whole"


def test_digests_are_of_files_that_have_their_size(run_program: Program, tmp_path: Path) -> None:
    import hashlib

    (tmp_path / "a").write_bytes(b"abc")
    sizes = {str(tmp_path / "a"): 3, str(tmp_path / "b"): 3}
    assert said(run_program, "digests", {"sizes": sizes}) == {
        str(tmp_path / "a"): hashlib.sha256(b"abc").hexdigest()
    }
    assert said(run_program, "digests", {"sizes": {str(tmp_path / "a"): 4}}) == {}


def test_the_engines_processes_tell_what_they_were_started_with(
    run_program: Program, tmp_path: Path
) -> None:
    """Not what a file says now: what /proc/<pid>/environ says."""
    mark = f"dspark-test-engine-{os.getpid()}"
    env = {**os.environ, "VLLM_DSPARK_REMOTE_TRIP": "7", "OTHER": "x"}
    engine = subprocess.Popen(["sh", "-c", f"sleep 60; : {mark}"], env=env)
    try:
        asked: dict[str, Any] = dict.fromkeys(("unit", "container", "mount", "drop_in"))
        asked |= {"env_file": str(tmp_path / "none"), "process": mark, "python": sys.executable}
        found = said(run_program, "engine_facts", asked)
        assert [one["pid"] for one in found["processes"]] == [engine.pid]
        assert found["processes"][0]["variables"] == {"VLLM_DSPARK_REMOTE_TRIP": "7"}
        assert found["env_file_text"] is None
        assert 0 <= time.time() - found["processes"][0]["started_s"] < 30
    finally:
        engine.kill()
        engine.wait()


def test_an_installed_client_has_the_digest_of_its_wheel(
    run_program: Program, tmp_path: Path
) -> None:
    import zipfile

    from dsparkctl.rollout.deploy_sparks import package_digest

    wheel = tmp_path / "dsparkctl-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("dsparkctl/__init__.py", "dsparkctl/client/a.py", "dspark_worker/x.py",
                     "dsparkctl-0.1.0.dist-info/RECORD"):  # fmt: skip
            archive.writestr(name, name)
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    asked = {"env_file": "/none", "unit": "none.service", "container": None, "process": "x",
             "python": "", "mount": str(site), "drop_in": None}  # fmt: skip
    found = said(run_program, "engine_facts", asked)
    came_s = found["package"].pop("came_s")
    assert 0 <= time.time() - came_s < 30
    assert found["package"] == {"digest": package_digest(wheel), "version": "0.1.0"}
    (site / "dsparkctl" / "client" / "a.py").write_text("changed")
    assert said(run_program, "engine_facts", asked)["package"]["digest"] != package_digest(wheel)


def test_a_process_sees_the_switch_file_with_its_own_account_and_root(
    run_program: Program, tmp_path: Path
) -> None:
    """R40: a file that the engine may not look at switches nothing."""
    mark = f"dspark-test-switch-{os.getpid()}"
    switch = tmp_path / "open" / "off"
    switch.parent.mkdir()
    tmp_path.chmod(0o755)
    tmp_path.parent.chmod(0o755)
    run = ("sh", "-c", f"sleep 60; : {mark}")
    engine = subprocess.Popen(run)
    asked = {"process": mark, "switch_file": str(switch)}

    def sees() -> Any:
        return [one["sees_switch"] for one in said(run_program, "engine_facts", asked)["processes"]]

    try:
        assert sees() == [False]
        switch.touch()
        assert sees() == [True]
    finally:
        engine.kill()
        engine.wait()
    if os.getuid() == 0:
        other = subprocess.Popen(run, user="nobody", group="nogroup", extra_groups=[])
        try:
            switch.parent.chmod(0o700)
            assert sees() == [None]
        finally:
            other.kill()
            other.wait()


def test_a_listener_is_seen_on_its_port_and_a_connection_is_none(run_program: Program) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as mine:
            for asked, seen in ((port, True), (mine.getsockname()[1], False)):
                found = said(run_program, "engine_facts", {"process": "x" * 40, "port": asked})
                assert found["listens"] is seen
