"""Does the page on the core name each machine, and only files that exist?"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORE = ROOT / "supervisor" / "core"
PAGE = (ROOT / "docs" / "architecture" / "core.md").read_text()


def test_every_file_that_it_names_exists() -> None:
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", PAGE))
    missing = [
        each for each in sorted(named) if not any((place / each).is_file() for place in (CORE, CORE.parent, ROOT))
    ]
    assert len(named) > 50
    assert [each for each in missing if each != "dumb.py"] == []  # of several folders of tests


def test_every_machine_is_there() -> None:
    machines = [
        path for path in sorted(CORE.rglob("*.py")) if re.search(r"^def step\(", path.read_text(), re.MULTILINE)
    ]
    assert len(machines) > 20
    assert [str(path.relative_to(CORE)) for path in machines if f"{path.name}`" not in PAGE] == []
