"""Which checkpoint the demo drafts with, and the HELLO that follows from it (§6.2, §6.7).

Decides that a receipt beside the checkpoint's files speaks for them; without one they are hashed.
"""

from pathlib import Path
from typing import Final, NamedTuple

from dsparkctl.checkpoint.digest import digest_files
from dsparkctl.checkpoint.files import find_files
from dsparkctl.checkpoint.model_config import read_model_config
from dsparkctl.config.files import read_receipt
from dsparkctl.config.hello import HelloParams
from dsparkctl.contract.identity import drafter_identity
from dsparkctl.contract.records import Hello

EMBEDDED: Final = Path(__file__).with_name("checkpoint")
"""The tiny checkpoint that comes with this package."""

_RECEIPT: Final = "DSPARK_COPY_DONE"


class Terms(NamedTuple):
    """A checkpoint as a client and a worker of it agree on it."""

    hello: Hello
    receipt: Path | None


def terms_of(checkpoint: Path) -> Terms:
    """CheckpointError, ReadError or ReceiptError when the folder holds no such thing."""
    files = find_files(checkpoint)
    receipt = checkpoint / _RECEIPT
    found = receipt if receipt.exists() else None
    sources = digest_files(files.sources) if found is None else read_receipt(found).files
    hello = HelloParams.from_checkpoint(
        read_model_config(files),
        drafter_identity=drafter_identity(sources),
        client_name="dsparkctl demo",
    )
    return Terms(hello.record(), found)
