"""`holdfast completion SHELL`: what a shell needs to complete commands, flags, their values and job ids.

Prints the shell's own code. Later the shell calls `holdfast` with the line typed so far; `answer` then says
what may follow, and nothing else runs.
"""

from __future__ import annotations

import sys
from argparse import Action, ArgumentParser, Namespace, RawDescriptionHelpFormatter

import argcomplete
from argcomplete.completers import BaseCompleter, FilesCompleter
from argcomplete.shell_integration import shellcode

from supervisor.cli.supervisor_discovery import Supervisors
from supervisor.cli.whole_parser import whole_parser
from supervisor.config.run_flags import read_command_line
from supervisor.errors import HoldfastError

JOBS_MAX = 50  # offered; the newest
LIVE_ONLY = ("stop", "restart", "stacks")  # the other commands know ended jobs, too
EPILOG = """\
Put one of these where your shell starts:
  bash  ~/.bashrc                    eval "$(holdfast completion bash)"
  zsh   ~/.zshrc, after compinit     eval "$(holdfast completion zsh)"
  fish  once                         holdfast completion fish > ~/.config/fish/completions/holdfast.fish
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.formatter_class = RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], metavar="SHELL", help="bash, zsh or fish")


def execute(arguments: Namespace) -> int:
    sys.stdout.write(shellcode(["holdfast"], shell=arguments.shell))
    return 0


def answer(line: str) -> None:
    """Tells the shell what may follow in `line`, and ends this process."""
    words = line.split()
    typed = words[1] if len(words) > 1 else ""
    finished = words[2:] if line.endswith(" ") else words[2:-1]
    parser = _files_only() if typed == "run" and _names_script(finished) else whole_parser(only=typed or "-")
    argcomplete.autocomplete(parser, always_complete_options=False, default_completer=_Values(typed))


def _names_script(words: list[str]) -> bool:
    try:
        return bool(read_command_line(words).command)
    except HoldfastError:
        return False  # The last flag still lacks its value, say.


def _files_only() -> ArgumentParser:
    """Completes the script's arguments with files only: its flags are not ours."""
    parser = ArgumentParser(prog="holdfast", add_help=False, prefix_chars="\0")
    parser.add_argument("words", nargs="*")
    return parser


class _Values(BaseCompleter):
    """Completes values that have no list of choices: names of jobs and nodes, otherwise files."""

    def __init__(self, command: str) -> None:
        super().__init__()
        self._command = command
        self._files = FilesCompleter()

    def __call__(self, *, prefix: str, action: Action, parser: ArgumentParser, parsed_args: Namespace) -> list[str]:
        if action.dest not in ("job", "node"):
            return [str(path) for path in self._files(prefix)]
        places = Namespace(
            socket_dir=getattr(parsed_args, "socket_dir", None), state_dir=getattr(parsed_args, "state_dir", None)
        )
        try:
            with Supervisors(places) as supervisors:
                names = _jobs(supervisors, self._command) if action.dest == "job" else _nodes(supervisors)
        except HoldfastError:
            return []  # In the middle of a line there is no place for a reason.
        return [name for name in dict.fromkeys(names) if name.startswith(prefix)]


def _jobs(supervisors: Supervisors, command: str) -> list[str]:
    found = supervisors.jobs(include_ended=command not in LIVE_ONLY)
    return [job.name for job in found[:JOBS_MAX]]


def _nodes(supervisors: Supervisors) -> list[str]:
    return [node.name for each in supervisors.own for node in each.client.nodes()]
