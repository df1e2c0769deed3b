"""What does the whole command line look like to a library that knows argparse: that of completion, or of man pages?

Nothing here runs a command. `run` and `daemon` read their flags themselves; here they become argparse's, from the same
table that their help is made of.
"""

from __future__ import annotations

import re
from argparse import REMAINDER, ArgumentParser, RawDescriptionHelpFormatter
from importlib import import_module

from supervisor.cli.commands import COMMANDS, Command
from supervisor.config.setting import Setting, Status

ALTERNATIVES = re.compile(r"[a-z][a-z0-9-]*(\|[a-z][a-z0-9-]*)+")  # none|node|socket
SUMMARY = "Keeps distributed PyTorch training running while its parts fail."


def whole_parser(*, only: str = "") -> ArgumentParser:
    """Returns the parser of all commands. With `only`, the modules of the other commands are not imported."""
    parser = ArgumentParser(prog="holdfast", description=SUMMARY, allow_abbrev=False)
    parser.add_argument("-V", "--version", action="store_true", help="show the version")
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    for command in COMMANDS.values():
        own = commands.add_parser(command.name, help=command.summary, description=command.summary, allow_abbrev=False)
        if not only or command.name == only:
            add_arguments(own, command)
    return parser


def parser_of(command: Command) -> ArgumentParser:
    """Returns the parser of one command, as its man page shows it."""
    parser = ArgumentParser(prog=f"holdfast {command.name}", description=command.summary, allow_abbrev=False)
    add_arguments(parser, command)
    return parser


def add_arguments(parser: ArgumentParser, command: Command) -> None:
    if not command.takes_raw_arguments:
        import_module(command.module).add_arguments(parser)
    elif command.name == "run":
        from supervisor.config.help_text import EXAMPLES
        from supervisor.config.launch_settings import RUN_SETTINGS

        parser.formatter_class, parser.epilog = RawDescriptionHelpFormatter, EXAMPLES
        parser.usage = "holdfast run [options] script.py [args...]"
        _add_settings(parser, RUN_SETTINGS)
        parser.add_argument("script", help="the script, a module with -m, a command with --no-python")
        parser.add_argument("args", nargs=REMAINDER, help="all that follows is the script's own")
    else:
        from supervisor.config.daemon_settings import DAEMON_SETTINGS

        _add_settings(parser, DAEMON_SETTINGS)


def _add_settings(parser: ArgumentParser, settings: tuple[Setting, ...]) -> None:
    for setting in settings:
        if setting.status is not Status.WORKS:
            continue
        names = [setting.short] * bool(setting.short) + [setting.flag]
        meaning = setting.meaning.replace("%", "%%")
        default = setting.default_text()
        if setting.is_switch:
            if setting.default_value() is True:
                meaning += f" [{default}; false after it turns it off]"
            parser.add_argument(*names, action="store_true", help=meaning)
            continue
        meaning += f" [{default.replace('%', '%%')}]" if default else ""
        words = setting.kind.metavar
        if ALTERNATIVES.fullmatch(words):
            parser.add_argument(*names, choices=words.split("|"), metavar=words, help=meaning)
        else:
            parser.add_argument(*names, metavar=words, help=meaning)
