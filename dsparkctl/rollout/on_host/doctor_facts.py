"""What a doctor wants to know of a host; run there as root.

Takes {links: [{bind, peer, mtu}], folders, ports, sys}: of each link this host's own address is
`bind`. Looks, sends one ping a link, and changes nothing. `sys` is /sys, but for tests.
"""

import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional

MAX_TEXT_BYTES = 1 << 20


def said(*argv: str) -> str:
    try:
        return subprocess.run(argv, capture_output=True, timeout=15).stdout.decode().strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def text(at: str) -> str:
    try:
        with open(at, encoding="utf-8", errors="replace") as file:
            return file.read(MAX_TEXT_BYTES)
    except OSError:
        return ""


def parsed(data: str) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return []


def interfaces() -> List[Dict[str, Any]]:
    return [
        {
            "name": one["ifname"],
            "mtu": one["mtu"],
            "is_up": "UP" in one.get("flags", []),
            "addresses": [address["local"] for address in one.get("addr_info", [])],
        }
        for one in parsed(said("ip", "-j", "addr"))
        if "ifname" in one
    ]


def route(bind: str, peer: str) -> Optional[Dict[str, Any]]:
    found = parsed(said("ip", "-j", "route", "get", peer, "from", bind))
    return {"dev": found[0].get("dev")} if found and isinstance(found, list) else None


def ping(bind: str, peer: str, n_bytes: int) -> bool:
    """One packet of that many bytes on the wire that nobody may cut into pieces."""
    size = str(n_bytes - 28)
    argv = ["ping", "-c", "1", "-W", "2", "-M", "do", "-s", size, "-I", bind, peer]
    try:
        return subprocess.run(argv, capture_output=True, timeout=15).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def memory() -> Dict[str, int]:
    found = {}
    for line in text("/proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            found[name] = int(rest.split()[0]) * 1024
    return found


def gpus() -> List[Dict[str, str]]:
    asked = "name,driver_version,compute_cap,memory.total,memory.free"
    lines = said("nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader").splitlines()
    return [
        dict(zip(asked.split(","), [part.strip() for part in line.split(",")])) for line in lines
    ]


def rdma(root: str) -> List[Dict[str, Any]]:
    top = os.path.join(root, "class", "infiniband")
    found = []
    for device in sorted(os.listdir(top)) if os.path.isdir(top) else []:
        gids = []
        ports = os.path.join(top, device, "ports")
        for port in sorted(os.listdir(ports)) if os.path.isdir(ports) else []:
            here = os.path.join(ports, port)
            for index in sorted(os.listdir(os.path.join(here, "gids")))[:256]:
                gid = text(os.path.join(here, "gids", index)).strip()
                kind = text(os.path.join(here, "gid_attrs", "types", index)).strip()
                if gid and set(gid) - set(":0"):
                    gids.append({"port": port, "index": index, "gid": gid, "type": kind})
        found.append({"device": device, "gids": gids})
    return found


def listeners(ports: List[int]) -> Dict[str, str]:
    """Who listens on the ports."""
    found = {}
    for line in said("ss", "-Hltnp").splitlines():
        parts = line.split()
        port = parts[3].rpartition(":")[2] if len(parts) > 3 else ""
        if port.isdigit() and int(port) in ports:
            found[port] = parts[-1][:100]
    return found


def free(at: str) -> Dict[str, Any]:
    here = at
    while here and not os.path.exists(here):
        here = os.path.dirname(here)
    return {"exists": os.path.exists(at), "free_bytes": shutil.disk_usage(here or "/").free}


def main() -> None:
    asked = json.loads(sys.argv[1])
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    facts = {
        "time_s": time.time(),
        "python": list(sys.version_info[:3]),
        "machine": platform.machine(),
        "memory": memory(),
        "memlock": [soft, hard],
        "gpus": gpus(),
        "interfaces": interfaces(),
        "links": [
            {
                "route": route(link["bind"], link["peer"]),
                "reaches": ping(link["bind"], link["peer"], 84),
                "reaches_whole": ping(link["bind"], link["peer"], link["mtu"]),
            }
            for link in asked["links"]
        ],
        "rdma": rdma(asked["sys"]),
        "listeners": listeners(asked["ports"]),
        "folders": {at: free(at) for at in asked["folders"]},
    }
    json.dump(facts, sys.stdout)


if __name__ == "__main__":
    main()
