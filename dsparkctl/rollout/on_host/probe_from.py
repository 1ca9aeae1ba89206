"""PING round trips from where this runs, with the rooms of ours that came along as a zip.

Takes {package, endpoint, count, pause_s, payload_bytes, timeout_s}: `package` is that zip in
base64. It is this distribution's own contract and net: nothing of the wire is written twice.
"""

import base64
import json
import os
import sys
import tempfile
import time
from typing import Any, Dict, List


def main() -> None:
    asked = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rooms.zip")
        with open(path, "wb") as file:
            file.write(base64.b64decode(asked["package"]))
        sys.path.insert(0, path)
        json.dump(measured(asked), sys.stdout)


def measured(asked: Dict[str, Any]) -> Dict[str, Any]:
    from dsparkctl.contract.codes import MAGIC, VERSION, Op
    from dsparkctl.contract.endpoint import parse_endpoint
    from dsparkctl.contract.layout import pack
    from dsparkctl.contract.records import AppHeader
    from dsparkctl.net.ask import ask
    from dsparkctl.net.dial import dial
    from dsparkctl.net.transport import Deadline, TransportError

    body = bytes(asked["payload_bytes"])
    endpoint, timeout_s = parse_endpoint(asked["endpoint"]), asked["timeout_s"]
    rtt_us: List[float] = []
    lost: List[str] = []
    link = None
    for seq in range(1, asked["count"] + 1):
        if seq > 1:
            time.sleep(asked["pause_s"])
        try:
            link = link or dial(endpoint, Deadline(timeout_s))
            head = pack(AppHeader(MAGIC, VERSION, Op.PING, seq, 0, len(body), 0, 0))
            start_s = time.perf_counter()
            reply = ask(link, [head, body], Deadline(timeout_s))
            if reply.header.status:
                sys.exit(f"{endpoint}: PING was refused with status {reply.header.status}")
            rtt_us.append((time.perf_counter() - start_s) * 1e6)
        except TransportError as error:
            link = None
            lost.append(str(error))
            if len(lost) == 10:
                break
    return {"rtt_us": rtt_us, "lost": lost}


if __name__ == "__main__":
    main()
