"""Who listens on a port, as the kernel's tables have it, and a port on which nobody does."""

from __future__ import annotations

import os
import socket
import struct

from dsparkctl.rollout.doctor.collector.tools import read

_LISTENS = "0A"
MAX_HOLDERS = 64


def holders(root: str, wanted: list[int]) -> list[dict[str, object]]:
    """Every listener on one of the ports; its process only where this account may see it."""
    found = []
    for name in ("tcp", "tcp6"):
        for line in (read(root + "/proc/net/" + name) or "").splitlines()[1:]:
            cells = line.split()
            address, port = cells[1].split(":")
            if cells[3] == _LISTENS and int(port, 16) in wanted:
                found.append((_address(address), int(port, 16), cells[9]))
    owners = _owners(root, {inode for _, _, inode in found}) if found else {}
    return [
        {"address": address, "port": port, **_process(root, owners.get(inode))}
        for address, port, inode in found[:MAX_HOLDERS]
    ]


def free_ports(addresses: list[str]) -> dict[str, int]:
    """A port that nobody uses now, for each of the addresses that are here."""
    found = {}
    for address in addresses:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            try:
                sock.bind((address, 0))
            except OSError:
                continue
            found[address] = sock.getsockname()[1]
    return found


def _address(text: str) -> str:
    """The kernel writes 32-bit words as the machine's numbers."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    data = b"".join(struct.pack("=I", word) for word in words)
    return socket.inet_ntop(socket.AF_INET if len(data) == 4 else socket.AF_INET6, data)


def _owners(root: str, inodes: set[str]) -> dict[str, str]:
    """The process of each socket; none where its descriptors are not for us to see."""
    found = {}
    for pid in filter(str.isdigit, os.listdir(root + "/proc")):  # noqa: PTH208
        at = root + "/proc/" + pid + "/fd/"
        try:
            names = os.listdir(at)  # noqa: PTH208
        except OSError:
            continue
        for name in names:
            try:
                target = os.readlink(at + name)  # noqa: PTH115
            except OSError:
                continue
            if target.startswith("socket:[") and target[8:-1] in inodes:
                found[target[8:-1]] = pid
    return found


def _process(root: str, pid: str | None) -> dict[str, object]:
    if pid is None:
        return {"pid": None, "command": None, "unit": None}
    command = (read(root + "/proc/" + pid + "/cmdline") or "").replace("\0", " ").strip()
    last = (read(root + "/proc/" + pid + "/cgroup") or "").splitlines()[-1:]
    unit = last[0].rpartition("/")[2] if last else ""
    return {"pid": int(pid), "command": command[:200], "unit": unit[:200] or None}
