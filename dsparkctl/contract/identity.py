"""Identities: the two digests by which Spark and worker know that they mean the same tensors.

Decides how §6.7 turns a receipt's source hashes into one digest, and the Markov file's bytes into
the other. Refuses to know where the hashes come from: a receipt or the files themselves.
"""

import hashlib
from collections.abc import Iterable
from typing import Final

from dsparkctl.contract.receipt import ReceiptFile

NO_MARKOV: Final = bytes(32)
"""The Markov identity of a side without a Markov cache (§6.2)."""


def drafter_identity(files: Iterable[ReceiptFile]) -> bytes:
    """32 bytes: sha256 over the lines `"<basename> <sha256-hex>\\n"`, sorted by basename (§6.7).

    `files` are a receipt's *source* files, all of them; their order does not matter.
    """
    lines = sorted((file.name, file.sha256.lower()) for file in files)
    return hashlib.sha256("".join(f"{name} {sha}\n" for name, sha in lines).encode()).digest()


def markov_identity(data: bytes | None) -> bytes:
    """32 bytes: sha256 of the Markov file's bytes, zeros when there is no such file (§6.2)."""
    return NO_MARKOV if data is None else hashlib.sha256(data).digest()
