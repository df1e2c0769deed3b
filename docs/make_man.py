"""Writes the manual pages in docs/man from the commands' own help."""

from argparse import ArgumentParser
from pathlib import Path

from argparse_manpage.manpage import Manpage  # pyright: ignore[reportMissingTypeStubs] - it has none

from supervisor.cli.commands import COMMANDS
from supervisor.cli.whole_parser import SUMMARY, parser_of, whole_parser

FOLDER = Path(__file__).with_name("man")
YEAR = "2026"  # a day would make each build differ


def write(parser: ArgumentParser, name: str, summary: str) -> None:
    page = Manpage(parser)
    # Pages are named as git names its own: man holdfast-run.
    page.prog, page.description = name, summary.rstrip(".")
    page.date, page.source, page.manual = YEAR, "Holdfast", "Holdfast's commands"
    (FOLDER / f"{name}.1").write_text(f"{page}\n")


FOLDER.mkdir(exist_ok=True)
write(whole_parser(only="-"), "holdfast", SUMMARY)
for command in COMMANDS.values():
    write(parser_of(command), f"holdfast-{command.name}", command.summary)
