"""Where things lie on the worker's host.

Decides paths and nothing else. `incoming` belongs to the ssh account, `shared` to the worker's,
everything else to root.
"""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

UNIT: Final = "dspark-worker.service"
UNITS: Final = PurePosixPath("/etc/systemd/system")

COMPLETE: Final = ".complete"
"""Written last of all: a release without it is half of one."""
CONFIG: Final = "dspark.yaml"
MANIFEST: Final = "manifest.json"


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths below `release.root`."""

    root: PurePosixPath

    @property
    def incoming(self) -> PurePosixPath:
        """A folder a release for uploads, which resume here."""
        return self.root / "incoming"

    @property
    def releases(self) -> PurePosixPath:
        return self.root / "releases"

    @property
    def shared(self) -> PurePosixPath:
        """What the worker itself writes, over all releases."""
        return self.root / "shared"

    @property
    def current(self) -> PurePosixPath:
        """The link to the release that serves."""
        return self.root / "current"

    @property
    def previous(self) -> PurePosixPath:
        """The link to the release that served before it."""
        return self.root / "previous"

    @property
    def lock(self) -> PurePosixPath:
        return self.root / "lock"

    @property
    def history(self) -> PurePosixPath:
        return self.root / "history.jsonl"

    @property
    def unit(self) -> PurePosixPath:
        return UNITS / UNIT

    def release(self, release_id: str) -> PurePosixPath:
        return self.releases / release_id

    def upload(self, release_id: str) -> PurePosixPath:
        return self.incoming / release_id

    def target(self, release_id: str) -> str:
        """What a link to a release holds: relative, so that the root may be moved."""
        return f"{self.releases.name}/{release_id}"
