"""A host that only remembers: for tests of what runs in which order. A test double."""

import socket
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from dsparkctl.rollout.host import CommandFailed, HostError, Progress, Ran


class RecordingHost:
    """Notes every verb; `answer` says what a command says, by itself nothing and 0."""

    def __init__(
        self, name: str = "x86host", answer: Callable[[tuple[str, ...]], Ran | None] | None = None
    ) -> None:
        self._name = name
        self._answer = answer or (lambda _: None)
        self.said: list[str] = []
        self.fails: set[str] = set()
        """Texts; a verb whose note contains one raises HostError."""

    @property
    def name(self) -> str:
        return self._name

    def _note(self, text: str) -> None:
        self.said.append(text)
        if any(part in text for part in self.fails):
            raise HostError(f"{self._name}: {text}: refused by the test")

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        as_root: bool = False,
        timeout_s: float = 60.0,
    ) -> Ran:
        self._note(" ".join(argv))
        return self._answer(tuple(argv)) or Ran(tuple(argv), 0, b"", b"")

    def check(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        as_root: bool = False,
        timeout_s: float = 60.0,
    ) -> Ran:
        ran = self.run(argv, stdin=stdin, as_root=as_root, timeout_s=timeout_s)
        if ran.code:
            raise CommandFailed(f"{self._name}: {' '.join(argv)}: exit code {ran.code}", ran)
        return ran

    def follow(
        self, argv: Sequence[str], line: Callable[[str], None], *, as_root: bool = False
    ) -> int:
        ran = self.run(argv, as_root=as_root)
        for text in ran.text.splitlines():
            line(text)
        return ran.code

    def put_file(
        self, local: Path, remote: PurePosixPath, *, sha256: str, progress: Progress | None = None
    ) -> None:
        self._note(f"put {local.name} {remote}")

    def put_tree(
        self, files: Sequence[Path], remote: PurePosixPath, *, progress: Progress | None = None
    ) -> None:
        self._note(f"put {len(files)} files {remote}")

    def write(
        self,
        path: PurePosixPath,
        data: bytes,
        *,
        mode: int = 0o644,
        owner: str | None = None,
        as_root: bool = False,
        timeout_s: float = 60.0,
    ) -> None:
        self._note(f"write {path}")

    def connect(self, address: str, port: int, *, timeout_s: float) -> socket.socket:
        return socket.create_connection((address, port), timeout_s)

    def close(self) -> None:
        pass
