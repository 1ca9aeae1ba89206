"""What the worker's host looks like now; run there as root.

Takes {root, unit, user, python, paths}. Looks, and changes nothing.
"""

import json
import os
import pwd
import re
import shutil
import subprocess
import sys
from typing import Any

MAX_TEXT_BYTES = 1 << 16


def text_of(path: str) -> Any:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(MAX_TEXT_BYTES)
    except OSError:
        return None


def said(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def link_of(path: str) -> Any:
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return None


def release(folder: str) -> Any:
    manifest = text_of(os.path.join(folder, "manifest.json"))
    try:
        digest = json.loads(manifest or "{}").get("digest")
    except (ValueError, AttributeError):
        digest = None
    return {
        "id": os.path.basename(folder),
        "digest": digest,
        "is_complete": os.path.exists(os.path.join(folder, ".complete")),
        "is_healthy": os.path.exists(os.path.join(folder, ".healthy")),
    }


def account(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def python_tag(python: str) -> Any:
    program = "import sys, sysconfig; print(*sys.version_info[:2], sysconfig.get_platform())"
    found = re.fullmatch(r"(\d+) (\d+) (\S+)", said(python, "-c", program))
    if found is None:
        return None
    has_venv = said(python, "-c", "import ensurepip, venv; print(1)") == "1"
    libc = said(python, "-c", "import platform; print('-'.join(platform.libc_ver()))")
    return {
        "version": [int(found[1]), int(found[2])],
        "platform": found[3],
        "libc": libc,
        "has_venv": has_venv,
    }


def main() -> None:
    asked = json.loads(sys.argv[1])
    root, unit = asked["root"], asked["unit"]
    releases = os.path.join(root, "releases")
    names = sorted(os.listdir(releases)) if os.path.isdir(releases) else []
    nearest = root
    while not os.path.exists(nearest):
        nearest = os.path.dirname(nearest)
    facts = {
        "has_systemd": os.path.isdir("/run/systemd/system"),
        "python": python_tag(asked["python"]),
        "has_account": account(asked["user"]),
        "has_root": os.path.isdir(releases),
        "releases": [release(os.path.join(releases, name)) for name in names[:1000]],
        "current": link_of(os.path.join(root, "current")),
        "previous": link_of(os.path.join(root, "previous")),
        "unit_text": text_of(os.path.join("/etc/systemd/system", unit)),
        "is_enabled": said("systemctl", "is-enabled", unit) == "enabled",
        "active": said("systemctl", "is-active", unit) or "unknown",
        "free_bytes": shutil.disk_usage(nearest).free,
        "missing_paths": [path for path in asked["paths"] if not os.path.exists(path)],
    }
    json.dump(facts, sys.stdout)


if __name__ == "__main__":
    main()
