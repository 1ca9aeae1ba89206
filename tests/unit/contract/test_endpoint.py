"""Endpoints (§5)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsparkctl.contract.endpoint import (
    ADMIN_PORT,
    DATA_PORT,
    RESERVED_PORT,
    SCHEMES,
    Endpoint,
    EndpointError,
    parse_endpoint,
)


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        (
            "o1rdma://10.202.28.1:18620?bind=10.202.28.2",
            Endpoint("o1rdma", "10.202.28.1", 18620, "10.202.28.2"),
        ),
        ("o1tcp://10.202.28.1:18620", Endpoint("o1tcp", "10.202.28.1", 18620)),
        ("tcp://127.0.0.1:0", Endpoint("tcp", "127.0.0.1", 0)),
        ("tcp://x86host.local:65535", Endpoint("tcp", "x86host.local", 65535)),
        ("tcp://my_host:1", Endpoint("tcp", "my_host", 1)),
        ("tcp://[fd00::1]:18620?bind=fd00::2", Endpoint("tcp", "fd00::1", 18620, "fd00::2")),
        ("tcp://[fe80::1%eth0]:1", Endpoint("tcp", "fe80::1%eth0", 1)),
        ("tcp://:18620", Endpoint("tcp", "", 18620)),
    ],
)
def test_endpoints_are_read_and_written_back(text: str, endpoint: Endpoint) -> None:
    """§5: the contract's own examples, and IPv6 in brackets."""
    assert parse_endpoint(text) == endpoint
    assert str(endpoint) == text


def test_an_ipv6_bind_may_stand_in_brackets() -> None:
    assert parse_endpoint("tcp://[::1]:1?bind=[::2]").bind == "::2"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected tcp://HOST:PORT"),
        ("127.0.0.1:18620", "expected tcp://HOST:PORT"),
        ("tcp:127.0.0.1:18620", "expected tcp://HOST:PORT"),
        ("udp://127.0.0.1:18620", "expected one of tcp, o1tcp, o1rdma"),
        ("TCP://127.0.0.1:18620", "expected one of tcp, o1tcp, o1rdma"),
        ("tcp://127.0.0.1", "expected a port after the host"),
        ("tcp://127.0.0.1:", "expected a port between 0 and 65535"),
        ("tcp://127.0.0.1:65536", "expected a port between 0 and 65535"),
        ("tcp://127.0.0.1:-1", "expected a port between 0 and 65535"),
        ("tcp://127.0.0.1:٣", "expected a port between 0 and 65535"),
        ("tcp://127.0.0.1:1 ", "expected a port between 0 and 65535"),
        ("tcp://127.0.0.1:1/", "expected tcp://HOST:PORT"),
        ("tcp://u@h:1", "expected tcp://HOST:PORT"),
        ("tcp://h:1#x", "expected tcp://HOST:PORT"),
        ("tcp://::1:18620", "expected tcp://HOST:PORT"),
        ("tcp://[127.0.0.1]:1", "expected an IPv6 address"),
        ("tcp://[::1%et h]:1", "expected an IPv6 address"),
        ("tcp://999.0.0.1:1", "expected a whole IPv4 address"),
        ("tcp://0:1", "expected a whole IPv4 address"),
        ("tcp://0x0:1", "expected a whole IPv4 address"),
        ("tcp://127.1:1", "expected a whole IPv4 address"),
        ("tcp://a b:1", "expected a host name or address"),
        ("tcp://-a:1", "expected a host name or address"),
        ("tcp://a..b:1", "expected a host name or address"),
        ("tcp://h:1?", "expected ?bind=ADDR and nothing else"),
        ("tcp://h:1?bnd=127.0.0.1", "expected ?bind=ADDR and nothing else"),
        ("tcp://h:1?bind", "expected ?bind=ADDR and nothing else"),
        ("tcp://h:1?bind=eth0", "expected an IP address after bind="),
        ("tcp://h:1?bind=", "expected an IP address after bind="),
        ("tcp://h:1?bind=::1&bind=::1", "expected one bind="),
        ("tcp://" + "h" * 600 + ":1", "expected tcp://HOST:PORT"),
        ("tcp://h\n:1", "expected a host name or address"),
    ],
)
def test_what_is_no_endpoint_is_refused_in_one_line(text: str, said: str) -> None:
    """§5"""
    with pytest.raises(EndpointError) as caught:
        parse_endpoint(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "is_wildcard"),
    [
        ("0.0.0.0", True),
        ("[::]", True),
        ("[0:0::0]", True),
        ("[::ffff:0.0.0.0]", True),
        ("", True),
        ("127.0.0.1", False),
        ("10.202.28.1", False),
        ("[::1]", False),
        ("localhost", False),
    ],
)
def test_a_wildcard_is_known_in_every_spelling(host: str, is_wildcard: bool) -> None:
    assert parse_endpoint(f"tcp://{host}:{DATA_PORT}").is_wildcard is is_wildcard


def test_the_ports_are_the_contracts() -> None:
    """§5; the admin port is ours (R37)."""
    assert (DATA_PORT, RESERVED_PORT, ADMIN_PORT) == (18620, 18621, 18630)


addresses = st.ip_addresses().map(str)
hosts = addresses | st.from_regex(r"[a-z][a-z0-9]{0,9}(\.[a-z]{1,5}){0,2}", fullmatch=True)
endpoints = st.builds(
    Endpoint, st.sampled_from(SCHEMES), hosts, st.integers(0, 65535), st.none() | addresses
)


@given(endpoints)
def test_every_endpoint_survives_being_written_and_read(endpoint: Endpoint) -> None:
    assert parse_endpoint(str(endpoint)) == endpoint


@given(st.text(max_size=60) | st.text("tcp:/[]?=&.@#%0123456789abind", max_size=40))
def test_any_text_is_an_endpoint_that_can_be_written_back_or_one_line(text: str) -> None:
    said = ""
    try:
        endpoint = parse_endpoint(text)
    except EndpointError as error:
        said = str(error)
    else:
        assert parse_endpoint(str(endpoint)) == endpoint
    assert "\n" not in said
