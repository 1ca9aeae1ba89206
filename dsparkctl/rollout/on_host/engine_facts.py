"""What the engine's host looks like now; run there as root. Changes nothing.

Takes any of {env_file, drop_in, python, mount, unit, container, process, port, switch_file}, and
looks only at what is named. Says of each running engine process which VLLM_DSPARK_* variables it
was really started with, when that was, and whether it sees the switch file with its own eyes: its
account, its root folder (a container's is another).
"""

import glob
import hashlib
import json
import os
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional, Set

MAX_TEXT_BYTES = 64 << 10
MAX_PROCESSES = 64
LISTEN = "0A"


def text(at: Optional[str]) -> Optional[str]:
    try:
        with open(at or "", encoding="utf-8", errors="replace") as file:
            return file.read(MAX_TEXT_BYTES)
    except OSError:
        return None


def said(*argv: str) -> str:
    try:
        return subprocess.run(argv, capture_output=True, timeout=20).stdout.decode().strip()
    except (OSError, subprocess.SubprocessError):
        return ""


# --- what is installed ----------------------------------------------------------------------------


def site_of(python: str) -> str:
    program = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return said(python, "-I", "-c", program)


def package(site: str) -> Optional[Dict[str, Any]]:
    """Our package below `site`: its version, one digest over its files as they are, and when the
    youngest of them (or the link to them) came to be."""
    top = os.path.join(site, "dsparkctl")
    if not os.path.isdir(top):
        return None
    names = sorted(
        os.path.relpath(os.path.join(folder, name), site)
        for part in ("dsparkctl", "dspark_worker")
        for folder, _, files in os.walk(os.path.join(site, part))
        for name in files
        if not name.endswith(".pyc")
    )
    found, came_s = hashlib.sha256(), os.lstat(site).st_ctime if os.path.islink(site) else 0.0
    for name in names:
        try:
            with open(os.path.join(site, name), "rb") as file:
                found.update(f"{name} {hashlib.sha256(file.read()).hexdigest()}\n".encode())
                came_s = max(came_s, os.fstat(file.fileno()).st_ctime)
        except OSError:
            found.update(f"{name} unreadable\n".encode())
    infos = glob.glob(os.path.join(glob.escape(site), "dsparkctl-*.dist-info"))
    version = os.path.basename(infos[0])[len("dsparkctl-") : -len(".dist-info")] if infos else ""
    return {"digest": found.hexdigest(), "version": version, "came_s": came_s}


# --- what runs ------------------------------------------------------------------------------------


def pids() -> List[str]:
    return [pid for pid in os.listdir("/proc") if pid.isdigit()]


def command_line(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(MAX_TEXT_BYTES).replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def stat(pid: str) -> List[str]:
    """The fields of /proc/PID/stat behind the command's name, which may hold anything."""
    return (text(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()


def parent(pid: str) -> str:
    fields = stat(pid)
    return fields[1] if len(fields) > 1 else "0"


def started_s(pid: str) -> float:
    """Unix time of its start."""
    fields = stat(pid)
    if len(fields) < 20:
        return 0.0
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s


def is_zombie(pid: str) -> bool:
    return stat(pid)[:1] in ([], ["Z"], ["X"])


def family(root: str) -> Set[str]:
    """A process and everything below it."""
    parents = {pid: parent(pid) for pid in pids()}
    found, more = {root}, {root}
    while more:
        more = {pid for pid, above in parents.items() if above in more and pid not in found}
        found |= more
    return found


def ancestors(pid: str) -> Set[str]:
    found = {pid}
    while pid not in ("0", "1", ""):
        pid = parent(pid)
        found.add(pid)
    return found


def of_unit(unit: str) -> Set[str]:
    """By its main process and by its cgroup: what left its parents is still the unit's."""
    shown = said("systemctl", "show", unit, "--property=MainPID,ControlGroup")
    found = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    main, group = found.get("MainPID", "0"), found.get("ControlGroup", "")
    ours = family(main) if main not in ("", "0") else set()
    if group.strip("/"):
        for folder, _, _ in os.walk("/sys/fs/cgroup" + group):
            ours |= set((text(os.path.join(folder, "cgroup.procs")) or "").split())
    return ours


def container(name: str) -> Optional[Dict[str, Any]]:
    form = "{{.Id}} {{.State.Running}} {{.State.Pid}}"
    found = said("docker", "inspect", "--type", "container", "--format", form, name).split()
    if len(found) != 3 or not found[2].isdigit():
        return None
    return {"id": found[0], "is_running": found[1] == "true", "pid": found[2]}


def by_command(part: str) -> Set[str]:
    own = ancestors(str(os.getpid()))
    return {pid for pid in pids() if pid not in own and part in command_line(pid)}


def environ(pid: str) -> Optional[Dict[str, str]]:
    """VLLM_DSPARK_* and PYTHONPATH, as the process was started with them."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = file.read(1 << 20).split(b"\0")
    except OSError:
        return None
    texts = [pair.decode("utf-8", "replace").split("=", 1) for pair in pairs if b"=" in pair]
    return {
        name: value
        for name, value in texts
        if name.startswith("VLLM_DSPARK_") or name == "PYTHONPATH"
    }


def sees(pid: str, path: str) -> Optional[bool]:
    """Whether the process finds the path; None when it may not look, or nobody can say.

    A child of ours takes its root and its account, and looks.
    """
    status = dict(line.split(":", 1) for line in (text(f"/proc/{pid}/status") or "").splitlines())
    child = os.fork()
    if not child:
        code = 3
        try:
            os.chroot(f"/proc/{pid}/root")
            os.chdir("/")
            os.setgroups([int(group) for group in status["Groups"].split()])
            os.setgid(int(status["Gid"].split()[1]))
            os.setuid(int(status["Uid"].split()[1]))
            code = 1
            os.lstat(path)
            code = 0
        except (FileNotFoundError, NotADirectoryError):
            pass
        except (OSError, KeyError):
            code = 3
        os._exit(code)
    ended = os.waitpid(child, 0)[1] >> 8
    return {0: True, 1: False}.get(ended)


def listens(port: int, ours: List[str]) -> bool:
    """Whether anybody listens on the port, here or in the network namespace of the engine."""
    tables = ["/proc"] + [f"/proc/{pid}" for pid in ours]
    for table in tables:
        for family_name in ("tcp", "tcp6"):
            try:
                with open(f"{table}/net/{family_name}", encoding="ascii") as file:
                    rows = [line.split() for line in file]
            except OSError:
                continue
            if any(row[3] == LISTEN and row[1].endswith(f":{port:04X}") for row in rows[1:]):
                return True
    return False


def main() -> None:
    asked = json.loads(sys.argv[1])
    facts: Dict[str, Any] = {"account": os.environ.get("SUDO_USER") or "root"}
    for key in ("env_file", "drop_in"):
        if asked.get(key):
            facts[f"{key}_text"] = text(asked[key])
    if asked.get("mount") or asked.get("python"):
        site = asked.get("mount") or site_of(asked["python"])
        facts["package"] = package(site) if site else None
    found: Set[str] = set()
    if asked.get("container"):
        facts["container"] = seen = container(asked["container"])
        found = family(seen["pid"]) if seen and seen["is_running"] else set()
    elif asked.get("unit"):
        found = of_unit(asked["unit"])
    elif asked.get("process"):
        found = by_command(asked["process"])
    running = sorted((pid for pid in found if not is_zombie(pid)), key=int)[:MAX_PROCESSES]
    facts["processes"] = []
    for pid in running:
        variables = environ(pid)
        if variables is not None:
            one: Dict[str, Any] = {
                "pid": int(pid),
                "command": command_line(pid)[:200],
                "variables": variables,
            }
            one["python_path"] = variables.pop("PYTHONPATH", "")
            one["started_s"] = started_s(pid)
            if asked.get("switch_file"):
                one["sees_switch"] = sees(pid, asked["switch_file"])
            facts["processes"].append(one)
    if asked.get("port"):
        # One process is enough: an engine shares its network.
        facts["listens"] = listens(asked["port"], running[:1])
    json.dump(facts, sys.stdout)


if __name__ == "__main__":
    main()
