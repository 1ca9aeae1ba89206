"""`python -m dsparkctl.net.fabric`: build the shim where the operator's CLI is not installed."""

import sys

from dsparkctl.exits import Exit
from dsparkctl.net.fabric.build import BuildError, build


def main() -> int:
    try:
        made = build()
    except BuildError as error:
        sys.stderr.write(f"{error}\n")
        return Exit.PREFLIGHT
    sys.stdout.write(f"built {made}\n")
    return Exit.OK


if __name__ == "__main__":
    sys.exit(main())
