"""Does where-to-look.md name existing files, one per row, none twice, and each machine of the core?"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "docs" / "architecture" / "where-to-look.md"
HEAD = "| symptom | the file that decides |"


def test_every_row_names_one_file_that_exists():
    rows = [line for line in TABLE.read_text().splitlines() if line.startswith("| ") and line != HEAD]
    assert len(rows) > 20
    named = [re.findall(r"`([\w/]+\.py)`", row) for row in rows]
    assert all(len(files) == 1 for files in named)
    missing = [file for (file,) in named if not (ROOT / file).is_file()]
    assert not missing
    assert len({file for (file,) in named}) == len(named)


def test_every_machine_of_the_core_is_where_some_symptom_leads():
    machines = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "supervisor" / "core").rglob("*.py")
        if re.search(r"^def step\(", path.read_text(), re.MULTILINE)
    }
    assert len(machines) > 20
    named = set(re.findall(r"`([\w/]+\.py)`", TABLE.read_text()))
    assert not machines - named
