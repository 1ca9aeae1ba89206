"""Recordings as files (issue 6, part 2): what is written is read, and what is cut ends quietly."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsparkctl.net.flight.pcapng import FlightError, Packet, opening, packed, read

packets = st.builds(
    Packet,
    st.integers(0, 2**63),
    st.booleans(),
    st.binary(max_size=300),
    st.integers(0, 2**32 - 1),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=100),
)


@given(several=st.lists(packets, max_size=5))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, several: list[Packet]
) -> None:
    path = tmp_path_factory.mktemp("p") / "a.pcapng"
    path.write_bytes(opening() + b"".join(map(packed, several)))
    assert list(read(path)) == several


def test_a_recording_that_was_cut_ends_with_its_last_whole_message(tmp_path: Path) -> None:
    one = Packet(5, True, b"abc", 3)
    whole = opening() + packed(one) + packed(one)
    path = tmp_path / "a.pcapng"
    for n_bytes in range(len(whole)):
        path.write_bytes(whole[:n_bytes])
        try:
            found = list(read(path))
        except FlightError:
            assert n_bytes < len(opening()), n_bytes
            continue
        assert found == [one] * (0 if n_bytes < len(opening() + packed(one)) else 1)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"hello there, no pcapng", opening() + b"\6\0\0\0\xff\xff\xff\xff",
        opening() + b"\6\0\0\0\x0d\0\0\0" + bytes(20), opening() + b"\6\0\0\0\x0c\0\0\0" + bytes(4),
    ],
    ids=["empty", "text", "a block of 4 GB", "no multiple of 4", "no body"],
)  # fmt: skip
def test_what_is_none_is_said_in_one_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.pcapng"
    path.write_bytes(data)
    with pytest.raises(FlightError) as raised:
        list(read(path))
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(FlightError, match="cannot be read: No such file"):
        list(read(tmp_path / "none"))
