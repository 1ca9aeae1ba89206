"""The checkpoint on its way to the worker's host: only what the receipt names (§6.7), verified.

Decides which files are missing there. The receipt comes last: a folder that has one is whole.
"""

from pathlib import Path, PurePosixPath

from dsparkctl.config.files import read_receipt
from dsparkctl.config.fleet import Fleet
from dsparkctl.contract.receipt import ReceiptFile
from dsparkctl.rollout.acts import Folder, PutFile, Run
from dsparkctl.rollout.host import Host
from dsparkctl.rollout.plan import Act, Plan, Step
from dsparkctl.rollout.programs import ask
from dsparkctl.rollout.ssh.upload import sha256_of

HASH_TIMEOUT_S = 3600.0


class CheckpointPlanError(Exception):
    """Files here that are not what the receipt names, or no place for them there; one line."""


def plan_checkpoint(
    fleet: Fleet, host: Host, directory: Path, receipt: Path, markov: Path | None
) -> Plan:
    """Uploads of what the host lacks."""
    worker = fleet.worker
    if worker.receipt is None:
        raise CheckpointPlanError("worker.receipt: missing; say where the receipt lies on the host")
    if (worker.markov is None) != (markov is None):
        raise CheckpointPlanError("--markov: expected exactly when dspark.yaml has worker.markov")
    listed = read_receipt(receipt)
    wanted = [_wanted(file, directory, worker.checkpoint) for file in listed.extracted_files]
    if not wanted:
        raise CheckpointPlanError(f"{receipt}: extracted_files is empty: it names nothing to bring")
    if markov is not None and worker.markov is not None:
        wanted.append((markov, PurePosixPath(worker.markov), sha256_of(markov)))
    wanted.append((receipt, PurePosixPath(worker.receipt), sha256_of(receipt)))
    sizes = {str(there): here.stat().st_size for here, there, _ in wanted}
    found = ask(host, "digests", {"sizes": sizes}, as_root=True, timeout_s=HASH_TIMEOUT_S)
    missing = [one for one in wanted if found.get(str(one[1])) != one[2]]
    if not missing:
        return Plan("deploy checkpoint")
    account = host.check(("id", "-un")).text
    acts = [act for one in missing for act in _brought(*one, account)]
    for folder in dict.fromkeys(_stage(there) for _, there, _ in missing):
        acts.append(Run(("rmdir", "--ignore-fail-on-non-empty", "--", str(folder))))
    n_gb = sum(here.stat().st_size for here, _, _ in missing) / 1e9
    title = f"bring {len(missing)} of {len(wanted)} files ({n_gb:.2f} GB)"
    return Plan("deploy checkpoint", (Step("checkpoint", title, host.name, tuple(acts)),))


def _stage(there: PurePosixPath) -> PurePosixPath:
    """Where a file grows: beside its place, on the same disk, in a folder of the login account's,
    so that no folder of somebody else's has to change hands."""
    return there.parent / ".dspark-incoming"


def _brought(here: Path, there: PurePosixPath, digest: str, account: str) -> tuple[Act, ...]:
    grown = _stage(there) / there.name
    return (
        Run(("mkdir", "-p", "--", str(there.parent))),
        Folder(_stage(there), account),
        PutFile(here, grown, digest),
        Run(("chown", "root:root", "--", str(grown))),
        Run(("chmod", "0644", "--", str(grown))),
        Run(("mv", "-T", "--", str(grown), str(there))),
    )


def _wanted(
    file: ReceiptFile, directory: Path, checkpoint: Path
) -> tuple[Path, PurePosixPath, str]:
    """Here, there, sha256. What is here is held against the receipt before anything is sent."""
    here = directory / file.name
    if not here.is_file():
        raise CheckpointPlanError(f"{here}: is missing, the receipt lists it")
    found = sha256_of(here)
    if found != file.sha256:
        raise CheckpointPlanError(f"{here}: sha256 is {found}, the receipt says {file.sha256}")
    return here, PurePosixPath(checkpoint) / file.name, file.sha256
