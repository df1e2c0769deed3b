"""Which command did the user type, and with which exit code does it end?

Commands are modules that are imported when they are typed: `holdfast run` loads nothing that only `status` needs.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from supervisor.cli import name_conflicts
from supervisor.cli.commands import ADOPT, COMMANDS, LATER, LOG_TIER, SERVE_USER, Command, near_miss, usage
from supervisor.cli.current_folder import current_folder
from supervisor.edges.machine.own_process import kernel_error_remedies, standard_streams
from supervisor.errors import HoldfastError

USAGE_ERROR = 2
TRY_AGAIN = 75
FAULT = 1  # of ours, or of the machine under us
CONFIGURATION_ERROR = 78
INTERRUPTED = 130  # 128 + SIGINT
COMPLETION_ASKED = "_ARGCOMPLETE"  # set by what `holdfast completion` prints
BROKEN_PIPE = 141  # 128 + SIGPIPE: who read our output has gone


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code. Never raises for a mistake that a user can make."""
    standard_streams.open_missing()
    try:
        return _code(argv)
    finally:
        standard_streams.settle()


def _code(argv: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if fault := name_conflicts.fault():
        return _say(fault, CONFIGURATION_ERROR)
    if warning := name_conflicts.warning(sys.argv[0]):
        standard_streams.say(f"holdfast: warning: {warning}")
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
    except HoldfastError as error:
        code = _say(str(error), error.exit_code)
        for line in getattr(error, "__notes__", ()):  # which are there to be copied
            standard_streams.say(line)
        return code
    except BrokenPipeError:
        standard_streams.stdout_is_broken()
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as end:  # argparse, which has printed why
        return end.code if isinstance(end.code, int) else USAGE_ERROR
    except ModuleNotFoundError as error:
        return _not_installed(error, arguments)
    except Exception as error:  # noqa: BLE001 - whatever it is, people get a sentence, and programs an exit code
        return _fault(error, arguments)
    return code


def _fault(error: Exception, arguments: Sequence[str]) -> int:
    """Reports an error that nobody expected. If a result could not be written, says that instead."""
    if isinstance(error, OSError) and (why := standard_streams.stdout_is_broken()):
        return _say(f"cannot write to stdout: {why}; check where the output goes", FAULT)
    from supervisor.cli.internal_error import alone, told

    error = alone(error)
    if isinstance(error, FileNotFoundError) and error.filename is None and not current_folder():
        return _say(
            f"cannot run holdfast {' '.join(arguments[:1])}: the current folder was removed; go to one that exists",
            USAGE_ERROR,
        )
    if why := kernel_error_remedies.in_words(error):
        return _say(f"cannot run holdfast {' '.join(arguments[:1])}: {why}", TRY_AGAIN)
    return _say(told(error, arguments), FAULT)


def _not_installed(error: ModuleNotFoundError, arguments: Sequence[str]) -> int:
    """Explains that a library of the extra [supervisor] is missing; any other missing module is a fault."""
    name = error.name or ""
    if not name or name.partition(".")[0] in ("supervisor", "worker_client", "holdfast_wire"):
        return _fault(error, arguments)
    return _say(
        f"cannot run holdfast {arguments[0]}: module {name} is not installed for {sys.executable}; install "
        "holdfast-torch with its extra [supervisor]: in a clone, pip install '.[supervisor]'",
        CONFIGURATION_ERROR,
    )


def _dispatch(arguments: list[str]) -> int:
    if COMPLETION_ASKED in os.environ:
        from supervisor.cli.completion import answer

        answer(os.environ.get("COMP_LINE", ""))  # Does not return.
    if not arguments or arguments[0] in ("-h", "--help", "--help-all", "help"):
        (sys.stdout if arguments else sys.stderr).write(usage(everything=arguments[:1] == ["--help-all"]))
        return 0 if arguments else USAGE_ERROR
    name, *rest = arguments
    if name in ("-V", "--version", "version"):
        import supervisor

        sys.stdout.write(f"holdfast {supervisor.__version__}\n")
        return 0
    if name in COMMANDS:
        return _run_command(COMMANDS[name], rest)
    for started_by_programs in (ADOPT, LOG_TIER, SERVE_USER):
        if name == started_by_programs.name:
            return _run_command(started_by_programs, rest)
    if name in LATER:
        return _say(f"cannot run holdfast {name}: not supported yet", USAGE_ERROR)
    return _say(f"cannot run holdfast {name}: there is no such command{near_miss(name)}; see holdfast --help", 2)


def _run_command(command: Command, arguments: list[str]) -> int:
    module = import_module(command.module)
    gc.freeze()
    gc.enable()  # It may be disabled, to load faster: see holdfast_command.
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # as holdfast_command sets it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if command.takes_raw_arguments:
        return module.execute_argv(arguments)
    from supervisor.cli.parsing import Parser

    parser = Parser(prog=f"holdfast {command.name}", description=command.summary, allow_abbrev=False)
    module.add_arguments(parser)
    given = parser.parse_args(arguments)
    # Not before `holdfast run`, whose workers wait for each import.
    from supervisor.cli.interrupt import end_when_unread, ends_at_once

    if getattr(given, "follow", False) or getattr(given, "watch", False):
        end_when_unread(BROKEN_PIPE)
    with ends_at_once(INTERRUPTED):
        return module.execute(given)


def _say(text: str, code: int) -> int:
    standard_streams.say(f"holdfast: {text}")
    return code
