"""The lock of a host's releases: a file made with O_EXCL, touched while it is held, free once it
was not touched for its lease. Run there as root; one at a time, by flock on its folder, so that of
two who find the same expired lock one gets it.

Takes {verb: take|touch|drop|look, path, token, owner, lease_s} and prints {held, owner, age_s}:
`held` says whether the file is `token`'s now, `owner` whose it is otherwise.
"""

import fcntl
import json
import os
import sys
import time
from typing import Any, Optional


def look(path: str) -> Optional[Any]:
    """(what it says, seconds since it was touched), or None where there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            age_s = time.time() - os.fstat(file.fileno()).st_mtime
            try:
                said = json.load(file)
            except ValueError:
                said = {}
            return (said if isinstance(said, dict) else {}), age_s
    except FileNotFoundError:
        return None


def make(path: str, said: Any) -> bool:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(said, file)
        file.flush()
        os.fsync(file.fileno())
    return True


def main() -> None:
    asked = json.loads(sys.argv[1])
    path, token, verb = asked["path"], asked["token"], asked["verb"]
    folder = os.path.dirname(path)
    if verb == "take":
        os.makedirs(folder, mode=0o755, exist_ok=True)
    if os.path.isdir(folder):
        fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX)  # until this program ends
    found = look(path)
    if verb == "take":
        if found is not None and found[1] > asked["lease_s"]:
            os.unlink(path)
        make(path, {"token": token, "owner": asked["owner"]})
    elif found is not None and found[0].get("token") == token:
        if verb == "touch":
            os.utime(path)
        elif verb == "drop":
            os.unlink(path)
    elif verb == "break" and found is not None:
        os.unlink(path)
    now = look(path)
    said, age_s = ({}, None) if now is None else now
    held = bool(token) and said.get("token") == token
    json.dump({"held": held, "owner": said.get("owner"), "age_s": age_s}, sys.stdout)


if __name__ == "__main__":
    main()
