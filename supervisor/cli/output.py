"""How are results shown: tables for people, lines of JSON for programs, plain text without a terminal?"""

from __future__ import annotations

import codecs
import json
import os
import shutil
import sys
import textwrap
import threading
from argparse import ArgumentParser
from collections.abc import Callable, Sequence

import msgspec

from supervisor.core import printable
from supervisor.edges.machine.own_process import standard_streams

REFRESH_S = 2.0
NARROW = 28  # columns in which a sentence can still be read
GAP = "  "
COLOURS = {
    "running": "32", "succeeded": "32", "ready": "32", "failed": "31", "hung": "31", "cordoned": "33",
    "healthy": "32", "unhealthy": "31", "suspect": "33", "unanswered": "33", "skipped": "36",
    "active": "32", "spare": "36", "lost": "31", "excluded": "31", "down": "33",
    "ok": "32", "note": "36", "warning": "33", "problem": "31",
    "pending": "33", "rendezvous": "33", "starting": "33", "restarting": "33", "stopping": "33", "stopped": "33",
}  # fmt: skip


class TextLayout(msgspec.Struct, frozen=True):
    """Describes stdout. With `width` None it is not a terminal, so nothing is cut or wrapped."""

    width: int | None
    colours: bool


def text_layout(no_colour: bool = False) -> TextLayout:
    if not sys.stdout.isatty():
        return TextLayout(None, colours=False)
    plain = no_colour or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return TextLayout(shutil.get_terminal_size().columns, colours=not plain)


def add_output_arguments(parser: ArgumentParser, *formats: str) -> None:
    parser.add_argument(
        "-o", "--output", choices=formats, default=formats[0], help="output format (default: %(default)s)"
    )
    parser.add_argument("--no-color", action="store_true", help="plain text; the variable NO_COLOR does the same")


def write_json(document: object, *, one_line: bool) -> None:
    sys.stdout.write(_encodable(json_of(document, one_line=one_line)) + "\n")
    sys.stdout.flush()


def json_of(document: object, *, one_line: bool) -> str:
    """Returns JSON that controls no terminal, with JSON's own escapes for what stdout cannot encode."""
    is_utf8 = codecs.lookup(_encoding()).name == "utf-8"
    return printable.json_text(json.dumps(document, ensure_ascii=not is_utf8, indent=None if one_line else 2))


def write(text: str) -> None:
    sys.stdout.write(_encodable(text))
    sys.stdout.flush()


def say(text: str) -> None:
    """Writes a message for people, not a result: if stderr can't be written, the command goes on without it."""
    standard_streams.say(f"holdfast: {text}")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], layout: TextLayout) -> str:
    """Sizes columns to their contents. The last is a sentence: folded, or below its row on a narrow terminal."""
    cells = [[printable.one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    return _line(heads, widths, layout, is_head=True) + "".join(_line(row, widths, layout) for row in cells)


def row(cells: Sequence[str], widths: Sequence[int], layout: TextLayout, *, is_head: bool = False) -> str:
    """Returns one line of a table that grows while it is read: its widths are given in advance."""
    return _line([printable.one_line(cell) for cell in cells], widths, layout, is_head=is_head)


def _line(cells: Sequence[str], widths: Sequence[int], layout: TextLayout, *, is_head: bool = False) -> str:
    *fixed, last = cells
    pairs = list(zip(fixed, widths, strict=False))
    used = sum(max(width, len(cell)) + len(GAP) for cell, width in pairs)
    head = _fixed_cells(pairs, layout)
    if layout.width is None or (is_head and used + len(last) <= layout.width):
        return (head + last).rstrip() + "\n"
    if layout.width - used < NARROW:  # for every row, that they look alike
        below = folded(last, layout, indent=4, first_indent=4) if last else ""
        return head.rstrip() + "\n" + below
    return head + folded(last, layout, indent=used, first_indent=0)


def _fixed_cells(pairs: Sequence[tuple[str, int]], layout: TextLayout) -> str:
    """Puts cells side by side; those that a terminal is too narrow for go below, indented."""
    text, used = "", 0
    for cell, width in pairs:
        if layout.width is not None and used and used + max(width, len(cell)) > layout.width:
            text, used = f"{text.rstrip(' ')}\n    ", 4
        text += _coloured(cell, layout) + " " * (width - len(cell)) + GAP
        used += max(width, len(cell)) + len(GAP)
    return text


def folded(text: str, layout: TextLayout, *, indent: int, first_indent: int | None = None) -> str:
    """Wraps at words and indents later lines; one long line if stdout is not a terminal. Ends its last line.

    `first_indent` None: the first line stands behind a label that is as wide as `indent`.
    """
    if layout.width is None:
        return text + "\n"
    room = max(layout.width - indent, NARROW)
    lines = textwrap.wrap(text, room, break_on_hyphens=False) or [""]
    return " " * (first_indent or 0) + ("\n" + " " * indent).join(lines) + "\n"


def _coloured(cell: str, layout: TextLayout) -> str:
    code = COLOURS.get(cell.rstrip("?"))
    return f"\x1b[{code}m{cell}\x1b[0m" if code and layout.colours else cell


def coloured(word: str, layout: TextLayout) -> str:
    """Returns a state in its colour."""
    return _coloured(word, layout)


def _encodable(text: str) -> str:
    """Escapes what the terminal's encoding cannot show, instead of failing."""
    return text.encode(_encoding(), "backslashreplace").decode(_encoding())


def _encoding() -> str:
    return sys.stdout.encoding or "utf-8"


def duration(seconds: float) -> str:
    """Returns two units at most: 0.4s, 12s, 3m05s, 2h14m, 5d03h."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02}h"


def plural(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def ranges(numbers: Sequence[int]) -> str:
    """Returns a text like "0-7, 16"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)


def show_again(show: Callable[[], bool], layout: TextLayout) -> None:
    """Calls `show` every two seconds until it says that it is done. Ages change without events."""
    never = threading.Event()
    while True:
        if layout.width is not None:
            sys.stdout.write("\x1b[H\x1b[2J")
        if not show():
            return
        never.wait(REFRESH_S)
