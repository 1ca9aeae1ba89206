"""Our own small programs, run on a host by its Python; each answers with one JSON object.

Decides how they get there: over stdin, so that nothing is left behind, with one JSON argument. A
host that answers with anything else has said why.
"""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

from dsparkctl.rollout.host import Host, HostError

MAX_ANSWER_BYTES: Final = 8 << 20


def ask(
    host: Host,
    program: str,
    asked: Mapping[str, Any],
    *,
    as_root: bool = False,
    timeout_s: float = 60.0,
    python: str = "python3",
    through: Sequence[str] = (),
) -> dict[str, Any]:
    """The answer of `on_host/<program>.py`; HostError when there is none.

    `through` goes in front of the command: into a container.
    """
    source = files("dsparkctl.rollout.on_host").joinpath(f"{program}.py").read_bytes()
    argv = (*through, python, "-I", "-", json.dumps(asked))
    ran = host.check(argv, stdin=source, as_root=as_root, timeout_s=timeout_s)
    try:
        answer = json.loads(ran.stdout[:MAX_ANSWER_BYTES])
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        said = ran.text[:80]
        raise HostError(
            f"{host.name}: {python} answers {said!a} instead of what was asked; does its shell "
            "print something at login?"
        )
    return answer
