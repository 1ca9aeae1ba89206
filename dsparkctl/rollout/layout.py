"""Where everything lies on the worker's host, below one folder.

incoming/<sha8>/      what is on its way; the only place the login account may write to
releases/<id>/        wheels/ venv/ dspark.yaml dspark-worker.service manifest.json
                      .complete (written last) .healthy (passed the gate)
shared/               what outlives releases: the worker's cache of hashes
current, previous     -> releases/<id>
lock, history.jsonl
"""

from pathlib import PurePosixPath
from typing import Final, NamedTuple

UNIT: Final = "dspark-worker.service"
UNIT_FILE: Final = PurePosixPath("/etc/systemd/system") / UNIT
CONFIG: Final = "dspark.yaml"
MANIFEST: Final = "manifest.json"
COMPLETE: Final = ".complete"
HEALTHY: Final = ".healthy"


class Layout(NamedTuple):
    root: PurePosixPath

    @property
    def incoming(self) -> PurePosixPath:
        return self.root / "incoming"

    @property
    def releases(self) -> PurePosixPath:
        return self.root / "releases"

    @property
    def shared(self) -> PurePosixPath:
        return self.root / "shared"

    @property
    def current(self) -> PurePosixPath:
        return self.root / "current"

    @property
    def previous(self) -> PurePosixPath:
        return self.root / "previous"

    @property
    def lock(self) -> PurePosixPath:
        return self.root / "lock"

    @property
    def history(self) -> PurePosixPath:
        return self.root / "history.jsonl"

    def release(self, name: str) -> PurePosixPath:
        return self.releases / name
