"""Does the table of the house have every folder?"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture" / "README.md").read_text()
TABLE = PAGE[PAGE.index("## The house") :]
OF_EDGES = 2  # below supervisor/edges, a folder has its own table or none: its files' first lines say what it is for


def test_every_folder_is_named() -> None:
    folders = {
        path.parent.relative_to(ROOT)
        for package in ("supervisor", "worker_client", "proto")
        for path in (ROOT / package).rglob("*.py")
        if "__pycache__" not in path.parts
    }
    named = set(re.findall(r"`(?:[\w/]*/)?(\w+)/?`", TABLE))
    below = [each for each in folders if len(each.parts) > 1]
    asked = [each for each in below if each.parts[1] != "edges" or len(each.parts) <= OF_EDGES + 1]
    assert len(asked) > 40
    assert sorted(str(each) for each in asked if each.name not in named) == []
