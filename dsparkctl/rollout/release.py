"""A release: what is installed, under an id that says when and what.

Decides the digest (equal digest: nothing to do) and the id `<utc>-<first 8 digits of it>`. Pure:
the time is an argument.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from dsparkctl.rollout.layout import CONFIG, UNIT
from dsparkctl.rollout.wheelhouse import Wheel, our_version

_ID: Final = re.compile(r"[0-9]{8}T[0-9]{6}-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class Release:
    """What one release consists of."""

    wheels: tuple[Wheel, ...]
    config: bytes
    """The worker's `dspark.yaml`."""
    unit: bytes
    python_tag: str
    """The host's: a venv belongs to one Python."""

    @property
    def version(self) -> str:
        return our_version(self.wheels)

    @property
    def digest(self) -> str:
        """64 hex digits over everything that is installed."""
        text = json.dumps(
            {
                "wheels": self.wheel_hashes,
                "files": self.file_hashes,
                "python": self.python_tag,
            },
            sort_keys=True,
        )
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def wheel_hashes(self) -> dict[str, str]:
        return {wheel.file: wheel.sha256 for wheel in self.wheels}

    @property
    def file_hashes(self) -> dict[str, str]:
        contents = {CONFIG: self.config, UNIT: self.unit}
        return {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}

    def manifest(self) -> bytes:
        """What the release says of itself; drift is told against it."""
        said = {
            "digest": self.digest,
            "version": self.version,
            "python": self.python_tag,
            "wheels": self.wheel_hashes,
            "files": self.file_hashes,
        }
        return (json.dumps(said, indent=1, sort_keys=True) + "\n").encode()

    def new_id(self, now: datetime) -> str:
        """`now` is UTC."""
        return f"{now:%Y%m%dT%H%M%S}-{self.digest[:8]}"


def is_id(name: str) -> bool:
    """Whether a folder of `releases` is one of ours: nothing else is ever touched."""
    return _ID.fullmatch(name) is not None
