"""`python -m dspark_worker serve|replay|…`: the worker's own entry, without the operator's CLI.

Decides exit codes: every reason not to serve becomes one line on stderr and the code an operator's
tools know. `dsparkctl worker …` becomes this process.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

from pydantic import ValidationError

from dspark_worker import bench_command, logs, options, replay_command, unpack_command
from dspark_worker.provenance import IdentityMismatch
from dspark_worker.serve import LoadError, serve
from dspark_worker.sockets import ListenError
from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.config.errors import ConfigError, FileError, InTheWay, WriteError
from dsparkctl.contract.receipt import ReceiptError
from dsparkctl.exits import Exit
from dsparkctl.streams import open_missing


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, and where to read more."""

    def error(self, message: str) -> NoReturn:
        self.exit(Exit.USAGE, f"{message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, run, and answer with an exit code."""
    open_missing()
    parser = _Parser(prog="dsparkctl worker", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (add_flags, _, text) in _VERBS.items():
        prog = f"dsparkctl {_GROUPS[name]}" if name in _GROUPS else f"{parser.prog} {name}"
        add_flags(
            commands.add_parser(name, prog=prog, help=text, description=text, allow_abbrev=False)
        )
    given = parser.parse_args(arguments)
    try:
        return _VERBS[given.command].run(given)
    except IdentityMismatch as error:
        return _failed(error, Exit.MISMATCH)
    except InTheWay as error:
        return _failed(error, Exit.USAGE)
    except (CheckpointError, ListenError, LoadError, WriteError) as error:
        return _failed(error, Exit.FAILED)
    except (options.UsageError, ConfigError, FileError, ReceiptError) as error:
        return _failed(error, Exit.USAGE)
    except ValidationError as error:
        # Limits and checkpoint do not make a HELLO together, e.g. a window above its field.
        fault = error.errors(include_url=False)[0]
        return _failed(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}", Exit.USAGE)
    except MemoryError:
        return _failed("out of memory while loading the checkpoint", Exit.FAILED)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED


def _serve(given: argparse.Namespace) -> int:
    settings = options.settings_of(given)
    logs.configure(as_json=settings.log_json)
    return serve(settings, ready_as_json=given.json)


class _Verb(NamedTuple):
    add_flags: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    text: str


_VERBS = {
    "serve": _Verb(options.add_flags, _serve, "serve drafts until SIGTERM"),
    "replay": _Verb(
        replay_command.add_flags,
        replay_command.run,
        "run a golden case through the worker and compare it",
    ),
    "bench": _Verb(bench_command.add_flags, bench_command.run, "measure rounds on this machine"),
    "dequantize": _Verb(
        unpack_command.add_dequantize_flags,
        unpack_command.dequantize,
        "unpack one EXL3 layer of a file",
    ),
    "convert": _Verb(
        unpack_command.add_convert_flags,
        unpack_command.convert,
        "copy a checkpoint with all weights unpacked",
    ),
}


_GROUPS = {
    "bench": "bench",
    "dequantize": "checkpoint dequantize",
    "convert": "checkpoint convert",
}
"""What a person called, where it is not `dsparkctl worker …`."""


def _failed(error: object, code: Exit) -> int:
    for line in str(error).splitlines():
        sys.stderr.write(f"{line}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
