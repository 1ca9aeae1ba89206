"""How fast files get to a host, against scp to the same sshd in the same run.

    python benchmarks/upload.py [--rounds 5] [--mb 512] [--files 2000]

Starts an sshd on loopback with keys of its own (OpenSSH's server must be installed); source and
target lie on /dev/shm, so that no disk is measured. Wall time, rounds interleaved, medians of the
rounds' ratios. Bars: 0.9 of scp's time for one file, 0.45 of `scp -r`'s for the many. Ours includes
the sha256 of everything on the host, which scp does not do.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from dsparkctl.rollout.ssh.config import route_to
from dsparkctl.rollout.ssh.machine import SshHost
from dsparkctl.rollout.ssh.upload import sha256_of
from tests.sshd import Sshd, running_sshd


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def compared(
    ours: Callable[[], object], scp: Callable[[], object], n_rounds: int
) -> dict[str, float]:
    pairs = [(seconds(ours), seconds(scp)) for _ in range(n_rounds)]
    return {
        "ours_s": round(statistics.median(a for a, _ in pairs), 2),
        "scp_s": round(statistics.median(b for _, b in pairs), 2),
        "ratio": round(statistics.median(a / b for a, b in pairs), 2),
    }


def scp(server: Sshd, *arguments: str) -> None:
    command = ["scp", "-q", "-F", str(server.config), *arguments]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def one_file(server: Sshd, host: SshHost, folder: Path, n_mb: int, n_rounds: int) -> None:
    local = folder / "local"
    with local.open("wb") as file:
        for _ in range(n_mb):
            file.write(os.urandom(1 << 20))
    digest = sha256_of(local)

    def ours() -> None:
        (folder / "ours").unlink(missing_ok=True)
        host.put_file(local, PurePosixPath(folder / "ours"), sha256=digest)

    def theirs() -> None:
        (folder / "theirs").unlink(missing_ok=True)
        scp(server, str(local), f"box:{folder / 'theirs'}")

    figures = compared(ours, theirs, n_rounds)
    print(json.dumps({"what": f"one file, {n_mb} MiB", **figures}))
    for name in ("local", "ours", "theirs"):
        (folder / name).unlink()


def many_files(server: Sshd, host: SshHost, folder: Path, n_files: int, n_rounds: int) -> None:
    source = folder / "many"
    source.mkdir()
    files = [source / f"{n}.py" for n in range(n_files)]
    for path in files:
        path.write_bytes(os.urandom(12_000))

    def ours() -> None:
        shutil.rmtree(folder / "ours", ignore_errors=True)
        host.put_tree(files, PurePosixPath(folder / "ours"))

    def theirs() -> None:
        shutil.rmtree(folder / "theirs", ignore_errors=True)
        scp(server, "-r", str(source), f"box:{folder / 'theirs'}")

    figures = compared(ours, theirs, n_rounds)
    print(json.dumps({"what": f"{n_files} files, 12 kB each", **figures}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mb", type=int, default=512)
    parser.add_argument("--files", type=int, default=2000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        with running_sshd(folder / "sshd") as server:
            host = SshHost("box", route_to("box", file=server.config), ask_password=str)
            one_file(server, host, folder, args.mb, args.rounds)
            many_files(server, host, folder, args.files, args.rounds)
            host.close()


if __name__ == "__main__":
    main()
