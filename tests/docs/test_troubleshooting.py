"""Are the messages on the troubleshooting page those that Holdfast prints?"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
LONG = 8  # characters of a message between two names; shorter pieces prove nothing


@cache
def _said() -> str:
    """Returns all texts of the source, one per line; names in f-strings are cut out."""
    texts: list[str] = []
    for folder in ("supervisor", "worker_client"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    parts = (each.value if isinstance(each, ast.Constant) else "…" for each in node.values)
                    texts.append("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    texts.append(node.value)
    return "\n".join(texts)


def test_each_message_is_one_that_holdfast_says():
    rows = re.findall(r"^\| (.*?) \|", PAGE.read_text(), re.MULTILINE)
    messages = [text for row in rows for text in re.findall(r"`([^`]+)`", row) if " " in text]
    messages = [text for text in messages if not text.startswith(("holdfast ", "--"))]
    missing = [
        (message, piece)
        for message in messages
        for piece in re.split(r"…|\bN\b|\bM\b", message)
        if len(piece.strip()) >= LONG and piece.strip() not in _said()
    ]
    assert len(messages) > 15
    assert not missing
