"""What is so on the worker's host; run there as root, by the Python that is to run the worker.

Takes {root, unit, user, folders, paths}. Changes nothing, and bounds what it says.
"""

import base64
import csv
import hashlib
import importlib.util
import json
import os
import platform
import pwd
import shutil
import subprocess
import sys
from typing import Any, Dict, List, Optional

MAX_TEXT_BYTES = 64 << 10
MAX_ENTRIES = 1000
MAX_HISTORY_BYTES = 1 << 20
SHOWN = ("ActiveState", "SubState", "UnitFileState", "MainPID", "Result", "NRestarts")


def main() -> None:
    asked = json.loads(sys.argv[1])
    root = asked["root"]
    libc = platform.libc_ver()
    facts = {
        "python": list(sys.version_info[:3]),
        "implementation": sys.implementation.name,
        "machine": platform.machine(),
        "libc": "-".join(libc) if libc[0] else "",
        "has_venv": importlib.util.find_spec("venv") is not None,
        "has_ensurepip": has_ensurepip(),
        "account": os.environ.get("SUDO_USER") or pwd.getpwuid(os.getuid()).pw_name,
        "has_user": has_user(asked["user"]),
        "folders": {name: folder(os.path.join(root, name)) for name in asked["folders"]},
        "releases": releases(os.path.join(root, "releases")),
        "incoming": incoming(os.path.join(root, "incoming")),
        "current": link(os.path.join(root, "current")),
        "previous": link(os.path.join(root, "previous")),
        "healthy": healthy(os.path.join(root, "history.jsonl")),
        "unit": unit(asked["unit"], os.path.basename(asked["unit"])),
        "free_bytes": free_bytes(root),
        "paths": {name: path(text) for name, text in asked["paths"].items()},
    }
    json.dump(facts, sys.stdout)


def has_ensurepip() -> bool:
    """Some distributions ship the module's name without its contents."""
    try:
        import ensurepip
    except ImportError:
        return False
    return bool(ensurepip.version())


def has_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def folder(at: str) -> Optional[List[str]]:
    """Owner and mode; None when there is none."""
    if not os.path.isdir(at):
        return None
    found = os.stat(at)
    try:
        owner = pwd.getpwuid(found.st_uid).pw_name
    except KeyError:
        owner = str(found.st_uid)
    return [owner, "%04o" % (found.st_mode & 0o7777)]


def names(at: str) -> List[str]:
    try:
        return sorted(os.listdir(at))[:MAX_ENTRIES]
    except OSError:
        return []


def read(at: str, most: int = MAX_TEXT_BYTES) -> Optional[bytes]:
    """A regular file's bytes, at most `most` of them."""
    try:
        if not os.path.isfile(at):
            return None
        with open(at, "rb") as file:
            return file.read(most)
    except OSError:
        return None


def text(at: str) -> Optional[str]:
    data = read(at)
    return None if data is None else data.decode("utf-8", "replace")


def sha256(at: str) -> str:
    digest = hashlib.sha256()
    try:
        with open(at, "rb") as file:
            for chunk in iter(lambda: file.read(1 << 20), b""):
                digest.update(chunk)
    except OSError:
        return ""
    return digest.hexdigest()


def link(at: str) -> Optional[str]:
    """The id that a link of ours names, whether or not it is there."""
    try:
        return os.path.basename(os.readlink(at))
    except OSError:
        return None


def releases(at: str) -> List[Dict[str, Any]]:
    found = []
    for name in names(at):
        here = os.path.join(at, name)
        if not os.path.isdir(here):
            continue
        is_complete = os.path.isfile(os.path.join(here, ".complete"))
        manifest = parsed(read(os.path.join(here, "manifest.json"), 1 << 20)) or {}
        found.append(
            {
                "id": name,
                "is_complete": is_complete,
                "manifest": manifest,
                "altered": altered(here, manifest) if is_complete else [],
                "unit_text": text(os.path.join(here, "dspark-worker.service")),
                "config_text": text(os.path.join(here, "dspark.yaml")),
            }
        )
    return found


def parsed(data: Optional[bytes]) -> Optional[Dict[str, Any]]:
    try:
        value = json.loads(data) if data else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def altered(here: str, manifest: Dict[str, Any]) -> List[str]:
    """Files of a release, our own package's among them, that are not what was installed."""
    wrong = [
        name
        for name, digest in sorted(dict(manifest.get("files") or {}).items())
        if sha256(os.path.join(here, name)) != digest
    ]
    for site in site_packages(here):
        for name in names(site):
            if name.startswith("dsparkctl-") and name.endswith(".dist-info"):
                wrong += recorded(here, site, os.path.join(site, name, "RECORD"))
    return wrong[:MAX_ENTRIES]


def site_packages(here: str) -> List[str]:
    lib = os.path.join(here, "venv", "lib")
    return [os.path.join(lib, name, "site-packages") for name in names(lib)]


def recorded(here: str, site: str, record: str) -> List[str]:
    wrong = []
    for row in csv.reader((read(record, 1 << 22) or b"").decode("utf-8", "replace").splitlines()):
        if len(row) == 3 and row[1].startswith("sha256="):
            at = os.path.join(site, row[0])
            digest = base64.urlsafe_b64encode(bytes.fromhex(sha256(at) or "00"))
            if digest.rstrip(b"=").decode() != row[1][len("sha256=") :]:
                wrong.append(os.path.relpath(at, here))
    return wrong


def incoming(at: str) -> Dict[str, Dict[str, str]]:
    """Whole uploads; what is still a part is not worth a hash."""
    found = {}
    for name in names(at):
        here = os.path.join(at, name)
        if os.path.isdir(here):
            whole = [one for one in names(here) if one.endswith(".whl")]
            found[name] = {one: sha256(os.path.join(here, one)) for one in whole}
    return found


def healthy(at: str) -> List[str]:
    """Ids that a gate found healthy, the latest last."""
    found: List[str] = []
    try:
        with open(at, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - MAX_HISTORY_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return found
    for line in lines:
        entry = parsed(line) or {}
        release = entry.get("release")
        if entry.get("step") == "activate" and entry.get("result") == "ok" and release:
            found = [one for one in found if one != release] + [str(release)]
    return found[-MAX_ENTRIES:]


def unit(at: str, name: str) -> Dict[str, Any]:
    shown = {"text": text(at)}  # type: Dict[str, Any]
    argv = ["systemctl", "show", name, "--property=" + ",".join(SHOWN)]
    try:
        said = subprocess.run(argv, capture_output=True, timeout=20).stdout.decode()
    except (OSError, subprocess.SubprocessError):
        said = ""
    for line in said.splitlines():
        key, _, value = line.partition("=")
        if key in SHOWN:
            shown[key] = value
    return shown


def free_bytes(at: str) -> int:
    while not os.path.isdir(at):
        at = os.path.dirname(at)
    return shutil.disk_usage(at).free


def path(at: str) -> Optional[str]:
    if os.path.isdir(at):
        return "folder"
    return "file" if os.path.isfile(at) else None


if __name__ == "__main__":
    main()
