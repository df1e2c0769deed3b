"""Does the page on the in-process restart name every package and file correctly?"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from worker_client import inprocess

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "worker_client/inprocess"
PAGE = ROOT / "docs/architecture/in-process.md"
DOCUMENTED_ROOMS = {"rank_assignment", "tools"}


def question(room: Path) -> str:
    return (ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or "").partition("\n")[0]


def rooms() -> list[Path]:
    return sorted(path.parent for path in FOLDER.glob("*/__init__.py"))


def test_every_room_is_listed_with_its_question():
    told = dict(re.findall(r"^\| `(\w+)/` \| (.*) \|$", PAGE.read_text(), re.MULTILINE))
    assert told == {room.name: question(room) for room in rooms() if room.name not in DOCUMENTED_ROOMS}
    assert all(each.endswith("?") for each in told.values())


def test_every_file_that_is_named_is_there():
    named = re.findall(r"`([\w/]+\.py)`", PAGE.read_text())
    assert named
    assert [path for path in named if not (FOLDER / path).is_file()] == []


def test_the_floor_has_what_scripts_import_and_nothing_else():
    floor = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    assert floor | DOCUMENTED_ROOMS == {name for name in inprocess.__all__ if name == name.lower()}
