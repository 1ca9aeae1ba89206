"""Identities (§6.7, §6.2)."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from dsparkctl.contract.identity import NO_MARKOV, drafter_identity, markov_identity
from dsparkctl.contract.receipt import ReceiptFile

A, B = "a" * 64, "b" * 64


def test_the_identity_is_the_digest_of_the_sorted_lines() -> None:
    """§6.7; the number is sha256sum's over the two lines."""
    files = [ReceiptFile("/x/model-00043-of-00046.safetensors", B), ReceiptFile("config.json", A)]
    lines = f"config.json {A}\nmodel-00043-of-00046.safetensors {B}\n"
    assert drafter_identity(files) == hashlib.sha256(lines.encode()).digest()
    assert drafter_identity(files).hex() == (
        "8899e3c0e6d38283fb595e837779e45bbca72de7da5ad2849dabd79bed95d43c"
    )


def test_files_are_sorted_by_basename_alone() -> None:
    """§6.7: neither by the folder nor by the digest."""
    in_folders = [ReceiptFile("z/a", B), ReceiptFile("a/b", A)]
    assert drafter_identity(in_folders) == drafter_identity(
        [ReceiptFile("b", A), ReceiptFile("a", B)]
    )


def test_names_are_sorted_as_bytes_and_hex_is_lower_case() -> None:
    """§6.7: upper-case names come first."""
    lines = f"B {A}\na {A}\n".encode()
    files = [ReceiptFile("a", A.upper()), ReceiptFile("B", A)]
    assert drafter_identity(files) == hashlib.sha256(lines).digest()


def test_the_markov_identity_is_of_the_bytes_and_zeros_without_a_file() -> None:
    """§6.2"""
    assert markov_identity(b"[1,2]") == hashlib.sha256(b"[1,2]").digest()
    assert markov_identity(b"") == hashlib.sha256(b"").digest()
    assert markov_identity(None) == NO_MARKOV == bytes(32)


file_sets = st.dictionaries(
    st.text(st.characters(exclude_characters="/\n", exclude_categories=["Cs"]), min_size=1),
    st.binary(min_size=32, max_size=32).map(bytes.hex),
    min_size=1,
    max_size=6,
)


@given(file_sets, st.randoms())
def test_order_does_not_matter_and_every_change_does(files: dict[str, str], random: object) -> None:
    """§6.7"""
    listed = [ReceiptFile(name, sha) for name, sha in files.items()]
    shuffled = sorted(listed, key=lambda _: random.random())  # type: ignore[attr-defined]
    assert drafter_identity(shuffled) == drafter_identity(listed)
    changed = [ReceiptFile(listed[0].path, "0" * 63 + "e"), *listed[1:]]
    assert drafter_identity(changed) != drafter_identity(listed)
    assert drafter_identity(listed[1:]) != drafter_identity(listed)
