"""Does docs/architecture/where-to-look.md name existing files, one per row, and none twice?"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "docs" / "architecture" / "where-to-look.md"


def test_every_row_names_one_file_that_exists():
    rows = [line for line in TABLE.read_text().splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20
    named = [re.findall(r"`([\w/]+\.py)`", row) for row in rows]
    assert all(len(files) == 1 for files in named)
    missing = [file for (file,) in named if not (ROOT / file).is_file()]
    assert not missing
    assert len({file for (file,) in named}) == len(named)
