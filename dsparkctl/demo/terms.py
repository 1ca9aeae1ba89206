"""Which checkpoint the demo drafts with, and the terms that follow from it (§6.2, §6.7).

Decides that a receipt beside the checkpoint's files speaks for them; without one they are hashed.
"""

from pathlib import Path
from typing import Final, NamedTuple

from dsparkctl.checkpoint.digest import digest_files
from dsparkctl.checkpoint.files import find_files
from dsparkctl.checkpoint.model_config import read_model_config
from dsparkctl.client.terms import EngineTerms
from dsparkctl.config.files import read_receipt
from dsparkctl.contract.identity import drafter_identity
from dsparkctl.demo.options import MAX_CONCURRENCY, MAX_MODEL_LEN

EMBEDDED: Final = Path(__file__).with_name("checkpoint")
"""The tiny checkpoint that comes with this package: a drafter, and the target it drafts for."""

_RECEIPT: Final = "DSPARK_COPY_DONE"


class Terms(NamedTuple):
    """A checkpoint as rank 0 and a worker of it agree on it."""

    engine: EngineTerms
    identity: bytes
    """32 bytes: drafter_identity."""
    receipt: Path | None


def terms_of(checkpoint: Path) -> Terms:
    """CheckpointError, ReadError or ReceiptError when the folder holds no such thing."""
    files = find_files(checkpoint)
    config = read_model_config(files)
    receipt = checkpoint / _RECEIPT
    found = receipt if receipt.exists() else None
    sources = digest_files(files.sources) if found is None else read_receipt(found).files
    engine = EngineTerms(
        num_spec=config.num_spec,
        window=config.window,
        hidden=config.hidden,
        tap_layer_ids=config.tap_layer_ids,
        noise_token_id=config.noise_token_id,
        vocab_size=config.vocab_size,
        max_model_len=MAX_MODEL_LEN,
        max_slots=MAX_CONCURRENCY,
        tp_size=1,
        dtype="bfloat16",
        draft_sample_method="greedy",
        draft_topk=None,
        watermarking=False,
        block_size=config.num_spec,
    )
    return Terms(engine, drafter_identity(sources), found)
