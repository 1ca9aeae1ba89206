"""What the engine's host looks like now; run there as root.

Takes {env_file, unit, container, process, python, mount, drop_in}. Changes nothing. Says of each
running engine process which VLLM_DSPARK_* variables it was really started with.
"""

import glob
import hashlib
import json
import os
import subprocess
import sys
from typing import Any, Dict, List, Optional

MAX_TEXT_BYTES = 64 << 10
MAX_PROCESSES = 64


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


def site_of(python: str) -> str:
    program = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return said(python, "-I", "-c", program)


def package(site: str) -> Optional[Dict[str, str]]:
    """Our package below `site`: its version, and one digest over its files as they are."""
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
    found = hashlib.sha256()
    for name in names:
        try:
            with open(os.path.join(site, name), "rb") as file:
                found.update(f"{name} {hashlib.sha256(file.read()).hexdigest()}\n".encode())
        except OSError:
            found.update(f"{name} unreadable\n".encode())
    infos = glob.glob(os.path.join(glob.escape(site), "dsparkctl-*.dist-info"))
    version = os.path.basename(infos[0])[len("dsparkctl-") : -len(".dist-info")] if infos else ""
    return {"digest": found.hexdigest(), "version": version}


def command_line(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(MAX_TEXT_BYTES).replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def parent(pid: str) -> str:
    for line in (text(f"/proc/{pid}/status") or "").splitlines():
        if line.startswith("PPid:"):
            return line.split()[1]
    return "0"


def family(root: str) -> List[str]:
    """A process and everything below it."""
    pids = [pid for pid in os.listdir("/proc") if pid.isdigit()]
    found = [root]
    grown = True
    while grown:
        more = [pid for pid in pids if pid not in found and parent(pid) in found]
        found += more
        grown = bool(more)
    return found


def engines(asked: Dict[str, Any]) -> List[str]:
    """Process ids of the running engine, by what is known of how it runs."""
    if asked.get("unit"):
        main = said("systemctl", "show", asked["unit"], "--property=MainPID", "--value")
        return family(main) if main not in ("", "0") else []
    if asked.get("container"):
        main = said("docker", "inspect", "--format", "{{.State.Pid}}", asked["container"])
        return family(main) if main.isdigit() and main != "0" else []
    ours = {str(os.getpid()), str(os.getppid()), *above(str(os.getpid()))}
    pids = [pid for pid in os.listdir("/proc") if pid.isdigit() and pid not in ours]
    return [pid for pid in pids if asked["process"] in command_line(pid)]


def above(pid: str) -> List[str]:
    found = []
    while pid not in ("0", "1", ""):
        pid = parent(pid)
        found.append(pid)
    return found


def environ(pid: str) -> Optional[Dict[str, str]]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = file.read(1 << 20).split(b"\0")
    except OSError:
        return None
    texts = [pair.decode("utf-8", "replace").split("=", 1) for pair in pairs if b"=" in pair]
    return {name: value for name, value in texts if name.startswith("VLLM_DSPARK_")}


def main() -> None:
    asked = json.loads(sys.argv[1])
    site = asked["mount"] or site_of(asked["python"])
    processes = []
    for pid in engines(asked)[:MAX_PROCESSES]:
        variables = environ(pid)
        if variables is not None:
            shown = command_line(pid)[:200]
            processes.append({"pid": int(pid), "command": shown, "variables": variables})
    facts = {
        "account": os.environ.get("SUDO_USER") or "root",
        "env_text": text(asked["env_file"]),
        "drop_in_text": text(asked["drop_in"]),
        "package": package(site) if site else None,
        "site": site,
        "processes": processes,
    }
    json.dump(facts, sys.stdout)


if __name__ == "__main__":
    main()
