"""Writes docs/reference/commands.md: the help that each command prints."""

import os
from pathlib import Path

from supervisor.cli.commands import COMMANDS, THEMES
from supervisor.cli.whole_parser import parser_of

HEAD = """\
# Commands

<!-- Written by docs/make_commands.py from the commands' own help. Do not edit: run `make docs`. -->

This page lists all options of each command, as the manual pages do (`man holdfast-run`). `holdfast run --help` shows
the usual ones, `--help-all` all.
[Configuration](../configuration.md) explains the flags of `run` and `daemon` with their keys and variables;
[Exit codes](exit-codes.md) explains how a command ends.
"""
COLUMNS = "110"  # of the help's lines

os.environ["COLUMNS"] = COLUMNS
lines = [HEAD]
for theme in THEMES:
    lines += [f"## {theme.title}", ""]
    for name in theme.names:
        parser = parser_of(COMMANDS[name])
        lines += [f"### holdfast {name}", "", "```text", parser.format_help().rstrip(), "```", ""]
place = Path(__file__).parent / "reference" / "commands.md"
place.parent.mkdir(exist_ok=True)
place.write_text("\n".join(lines).rstrip() + "\n")
