"""The contract's numbers (§5, §6, §9), written out a second time."""

from dsparkctl.contract import codes
from dsparkctl.contract.codes import EntryStatus, FrameStatus, Op, PayloadKind, SampleMode


def test_the_magic_spells_dsp1() -> None:
    """§6.1."""
    assert codes.MAGIC.to_bytes(4, "little") == b"DSP1"
    assert codes.VERSION == 1


def test_operations_are_numbered_as_in_the_header() -> None:
    """§6.1; 6 is reserved (§12)."""
    assert [*map(int, Op)] == [1, 2, 3, 4, 5]
    assert [op.name for op in Op] == ["HELLO", "STEP", "RESET", "STATS", "PING"]


def test_frame_statuses_are_those_of_the_table() -> None:
    """§9.1."""
    names = "OK BAD_VERSION IDENTITY_MISMATCH CONFIG_MISMATCH NO_SESSION STALE_SEQ MALFORMED"
    names += " CAPACITY INTERNAL UNSUPPORTED_OP"
    assert [(s.name, s.value) for s in FrameStatus] == [
        (name, i) for i, name in enumerate(names.split())
    ]


def test_entry_statuses_are_those_of_the_table() -> None:
    """§9.2."""
    names = "OK PARTIAL_WINDOW STALE_GENERATION BAD_ENTRY INTERNAL"
    assert [(s.name, s.value) for s in EntryStatus] == [
        (name, i) for i, name in enumerate(names.split())
    ]


def test_flags_are_the_bits_of_section_6() -> None:
    """§6.2, §6.3."""
    assert codes.STEP_FLAG_NAMES == {"WANT_MARGIN": 1}
    assert codes.REQ_FLAG_NAMES == {"NEW_GEN": 1, "NEED_DRAFT": 2, "RESYNC": 4}
    assert codes.REPLY_FLAG_NAMES == {"HAS_MARGIN": 1}
    assert codes.CAPABILITY_NAMES == {"TAPS_BF16": 1, "MAINX_BF16": 2, "HAS_MARGIN": 4}
    assert (PayloadKind.TAPS_BF16, PayloadKind.MAINX_BF16, SampleMode.GREEDY) == (1, 2, 1)


def test_the_mask_of_all_slots_has_every_bit() -> None:
    """§6.4."""
    assert codes.ALL_SLOTS == (1 << 32) - 1
