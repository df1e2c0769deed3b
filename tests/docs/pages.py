"""What do the documents that people read contain: which blocks of code, and which words set as code?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
TOP = ("README.md", "CONTRIBUTING.md", "SECURITY.md")


class Block(msgspec.Struct, frozen=True):
    """A fenced block."""

    page: str
    line: int
    language: str
    lines: tuple[str, ...]


class Span(msgspec.Struct, frozen=True):
    """Words that a sentence or a cell of a table sets as code."""

    page: str
    line: int
    text: str


def pages() -> list[Path]:
    return [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(*languages: str) -> Iterator[Block]:
    """Yields the blocks in these languages, or all of them."""
    for page in pages():
        opened: tuple[int, str] | None = None
        lines: list[str] = []
        for number, line in enumerate(page.read_text().splitlines(), 1):
            fence = re.match(r"\s*```(.*)$", line)
            if fence is None:
                lines.append(line)
            elif opened is None:
                opened, lines = (number, fence[1]), []
            else:
                if not languages or opened[1] in languages:
                    yield Block(_name(page), *opened, tuple(lines))
                opened = None


def spans() -> Iterator[Span]:
    for page in pages():
        text = re.sub(r"^\s*```.*?^\s*```", _blank, page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for found in re.finditer(r"(?<!`)`([^`]+)`(?!`)", text):
            line = text.count("\n", 0, found.start()) + 1
            yield Span(_name(page), line, " ".join(found[1].replace("\\|", "|").split()))


def _blank(block: re.Match[str]) -> str:
    return "\n" * block[0].count("\n")


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))
