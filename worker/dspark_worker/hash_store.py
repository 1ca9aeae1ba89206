"""Where the hashes of earlier starts are kept: a small file of the user's own.

Decides whether that file can be trusted: it must belong to us and nobody else may write to it, for
whoever can write there decides which tensors pass as proven. A cache that is damaged, foreign or
out of reach is a log line and no cache; it never stops a start.
"""

import logging
import os
import stat
from pathlib import Path

from dsparkctl.checkpoint.hash_cache import MAX_CACHE_BYTES, HashCache, parse_cache
from dsparkctl.config.errors import FileError, WriteError
from dsparkctl.config.files import read_whole, write_whole

log = logging.getLogger(__name__)


def default_path() -> Path | None:
    """`$XDG_CACHE_HOME/dsparkctl/hashes.json`, else the same in `~/.cache`; None without a home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not Path(base).is_absolute():
        try:
            base = str(Path.home() / ".cache")
        except RuntimeError:
            return None
    return Path(base) / "dsparkctl" / "hashes.json"


def load(path: Path) -> HashCache:
    """What was kept at `path`; an empty cache, and a log line why, where that is of no use."""
    try:
        found = path.stat()
        if found.st_uid not in (os.geteuid(), 0) or found.st_mode & 0o022:
            raise ValueError("others may write to it (chmod go-w, or delete it)")
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("not a regular file")
        return parse_cache(read_whole(path, max_bytes=MAX_CACHE_BYTES))
    except FileNotFoundError:
        pass
    except (OSError, ValueError, FileError) as error:
        reason = str(error).removeprefix(f"{path}: ")
        log.warning("hash cache %s is ignored: %s", path, reason)
    return HashCache()


def save(path: Path, cache: HashCache) -> None:
    """Put the cache back, whole or not at all."""
    if not cache.changed:
        return
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            path.touch(mode=0o600)  # the mode that `write_whole` then keeps
        elif path.stat().st_mode & 0o022:
            path.unlink()
            path.touch(mode=0o600)
        write_whole(path, cache.render())
    except (OSError, WriteError) as error:
        log.warning("hash cache %s is not kept: %s", path, error)
