"""Does where-to-look.md name existing files, one per row, none twice, and each file of the core that decides?

And does the short index on the page of the architecture name files of these rows only?
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "docs" / "architecture" / "where-to-look.md"
INDEX = ROOT / "docs" / "architecture" / "README.md"
# What these hold, others decide.
RECORDS = re.compile(r"_messages$|_states?$|^(call_actions|hang_facts|job_phases|node_check_facts)$")
HEAD = "| symptom | the file that decides |"


def test_every_row_names_one_file_that_exists():
    rows = [line for line in TABLE.read_text().splitlines() if line.startswith("| ") and line != HEAD]
    assert len(rows) > 20
    named = [re.findall(r"`([\w/]+\.py)`", row) for row in rows]
    assert all(len(files) == 1 for files in named)
    missing = [file for (file,) in named if not (ROOT / file).is_file()]
    assert not missing
    assert len({file for (file,) in named}) == len(named)


def test_every_file_of_the_core_that_decides_is_where_some_symptom_leads():
    deciding = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "supervisor" / "core").rglob("*.py")
        if re.search(r"^def [a-z]", path.read_text(), re.MULTILINE) and not RECORDS.search(path.stem)
    }
    assert len(deciding) > 80
    assert not deciding - set(re.findall(r"`([\w/]+\.py)`", TABLE.read_text()))


def test_the_index_of_the_architecture_page_names_files_of_these_rows_none_twice():
    page = INDEX.read_text()
    section = page[page.index("## Which file decides") : page.index("## The path of one fault")]
    named = re.findall(r"`((?:supervisor|worker_client)/[\w/]+\.py)`", section)
    assert len(named) > 60
    assert len(set(named)) == len(named)
    assert not set(named) - set(re.findall(r"`([\w/]+\.py)`", TABLE.read_text()))
