"""Whether a host is the one it claims to be: known_hosts files, fingerprints, and what to say.

Decides that an unknown key and a changed one both stop, whatever the program that asks. A
fingerprint pinned in dspark.yaml decides alone. `accept-new` writes a key down that nobody knows
yet; it never accepts one that contradicts what is known.
"""

import base64
import hashlib
import hmac
from collections.abc import Iterable, Iterator
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NamedTuple

from dsparkctl.rollout.host import HostKeyError, SshError

_MAX_FILE_BYTES: Final = 64 << 20


class Trust(StrEnum):
    """What is done with a key that nobody knows."""

    STRICT = "strict"
    ACCEPT_NEW = "accept-new"


class KnownKey(NamedTuple):
    """One line that names the host."""

    kind: str
    """ssh-ed25519, …"""
    key: bytes
    is_revoked: bool
    where: str
    """file:line"""


def fingerprint(key: bytes) -> str:
    """SHA256:…, as `ssh-keygen -l` prints it."""
    digest = base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")
    return f"SHA256:{digest}"


def known_keys(name: str, files: Iterable[Path]) -> list[KnownKey]:
    """Every key that the files hold for `name`. Only the lines that name it are decoded: a file of
    ten thousand hosts costs milliseconds."""
    return [found for path in files for found in _of_file(name, path)]


def _of_file(name: str, path: Path) -> Iterator[KnownKey]:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES)
    except FileNotFoundError:
        return
    except OSError as error:
        raise SshError(f"{path}: cannot be read: {error.strerror}") from None
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) < 3 or fields[0].startswith("#") or marker == "@cert-authority":
            continue
        if not _names(fields[0], name):
            continue
        try:
            key = base64.b64decode(fields[2], validate=True)
        except ValueError:
            raise SshError(f"{path}:{number}: its key is not base64; mend or remove it") from None
        yield KnownKey(fields[1], key, marker == "@revoked", f"{path}:{number}")


def _names(patterns: str, name: str) -> bool:
    """Whether the first field of a line means `name` (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT)."""
    if patterns.startswith("|1|"):
        return _is_hash_of(patterns, name)
    found = False
    for pattern in patterns.split(","):
        plain = pattern.removeprefix("!").lower()
        # fnmatch would read [host]:port as a set of characters.
        if fnmatchcase(name.lower(), plain.replace("[", "[[]")):
            if pattern.startswith("!"):
                return False
            found = True
    return found


def _is_hash_of(field: str, name: str) -> bool:
    try:
        _, _, salt, digest = field.split("|")
        expected = hmac.new(base64.b64decode(salt), name.encode(), "sha1").digest()
        return hmac.compare_digest(expected, base64.b64decode(digest))
    except ValueError:
        return False


def judge(
    name: str,
    kind: str,
    key: bytes,
    known: Iterable[KnownKey],
    *,
    pinned: str | None,
    trust: Trust,
) -> bool:
    """Whether the key has to be written down as new; HostKeyError when it must not be trusted."""
    shown = fingerprint(key)
    if pinned is not None:
        if shown == pinned:
            return False
        raise HostKeyError(
            f"{name}: its key is {shown} ({kind}), dspark.yaml pins {pinned}; find out why before "
            "you change host_key: somebody may stand in between"
        )
    known = list(known)
    for one in known:
        if one.key == key and one.is_revoked:
            raise HostKeyError(f"{name}: its key {shown} is revoked in {one.where}")
    if any(one.key == key for one in known):
        return False
    others = [one for one in known if not one.is_revoked]
    if others:
        raise HostKeyError(
            f"{name}: its key is {shown} ({kind}), {others[0].where} knows "
            f"{fingerprint(others[0].key)}; find out on the host itself why, by ssh-keygen -lf "
            f"/etc/ssh/ssh_host_*_key.pub, then ssh-keygen -R {name}"
        )
    if trust is Trust.ACCEPT_NEW:
        return True
    raise HostKeyError(
        f"{name}: nobody knows its key {shown} ({kind}); compare it on the host's own console, by "
        "ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub, then use --host-key accept-new or host_key in "
        "dspark.yaml"
    )


def write_down(name: str, kind: str, key: bytes, path: Path) -> None:
    """Append a line; one short write, so that two programs do not mix theirs."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            lead = b"\n" if file.tell() and not _ends_a_line(path) else b""
            file.write(lead + f"{name} {kind} {base64.b64encode(key).decode()}\n".encode())
    except OSError as error:
        raise SshError(f"{path}: cannot be written: {error.strerror}") from None


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"
