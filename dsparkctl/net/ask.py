"""One message out, its own reply back: what every caller of a link checks first (§6.1).

Decides whether a reply answers the request: DSP1, our version, and the same op, seq and session.
Refuses to judge its status and its body.
"""

from collections.abc import Sequence
from typing import NamedTuple

from dsparkctl.contract.codes import VERSION, FrameStatus
from dsparkctl.contract.errors import WireError
from dsparkctl.contract.framing import HEADER_BYTES
from dsparkctl.contract.layout import Buffer
from dsparkctl.contract.messages import parse_header
from dsparkctl.contract.records import AppHeader
from dsparkctl.net.transport import Broken, Deadline, Link


class NotOurs(Broken):
    """A whole message came back in time, but it does not answer the request (§6.3: echoes)."""


class Reply(NamedTuple):
    """A reply that answers its request; `body` holds until the link's next exchange."""

    header: AppHeader
    body: memoryview


def ask(link: Link, parts: Sequence[Buffer], deadline: Deadline) -> Reply:
    """Exchange a message whose first buffer begins with its AppHeader.

    TransportError as the link raises it, or NotOurs, with the link closed, when what came back
    does not answer the request.
    """
    message = link.exchange(parts, deadline)
    asked = parse_header(parts[0], sum(map(len, parts)))
    try:
        header = parse_header(message)
    except WireError as error:
        link.close()
        raise NotOurs(f"{link.endpoint}: the answer has no DSP1 header: {error}") from None
    differs = _difference(header, asked)
    if differs:
        link.close()
        raise NotOurs(f"{link.endpoint}: the answer is not to our request: {differs}")
    return Reply(header, message[HEADER_BYTES:])


def _difference(got: AppHeader, asked: AppHeader) -> str:
    for name in ("op", "seq", "session"):
        ours, theirs = getattr(asked, name), getattr(got, name)
        if ours != theirs:
            return f"{name} {theirs}, expected {ours}"
    # A peer of another version may say so, in a header of its own version.
    if got.version != VERSION and got.status != FrameStatus.BAD_VERSION:
        return f"version {got.version}, expected {VERSION}"
    return ""
