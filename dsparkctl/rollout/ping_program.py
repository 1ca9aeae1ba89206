"""PINGs a worker from the machine on which it runs, and says on stdout what became of them (R38).

Travels to a Spark in a parcel, with `contract` and `net`: the course as one JSON argument, the
tally as one JSON object. Holds to the standard library.
"""

import json
import sys
from typing import Any

from dsparkctl.contract.endpoint import parse_endpoint
from dsparkctl.net.dial import dial
from dsparkctl.net.ping import Course, Refused, Tally, measure
from dsparkctl.net.transport import Deadline, TransportError


def main(asked: dict[str, Any]) -> dict[str, Any]:
    """The tally's two lists; `failed` or `refused` when the course could not be run to its end."""
    endpoint = parse_endpoint(asked["endpoint"])
    course = Course(**asked["course"])
    tally = Tally()
    said: dict[str, Any] = {}
    try:
        measure(course, lambda left: dial(endpoint, left), tally, until=Deadline(asked["within_s"]))
    except TransportError as error:
        said = {"failed": str(error)}
    except Refused as error:
        said = {"refused": [error.op, error.status]}
    return {"rtt_us": [round(one, 1) for one in tally.rtt_us], "lost": tally.lost, **said}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))  # noqa: T201 -- its only voice
