"""Does where-to-look.md name existing files, one per row, none twice, and each file that decides?

And does the short index on the page of the architecture name files of these rows only?
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "docs" / "architecture" / "where-to-look.md"
INDEX = ROOT / "docs" / "architecture" / "README.md"
LINES_MIN = 60  # a shorter file outside the core may do without a row
# What these hold, others decide.
RECORDS = re.compile(r"_messages$|_states?$|^(call_actions|hang_facts|job_phases|node_check_facts)$")
# Outside the core, these hold or connect what others decide.
HELD = re.compile(
    r"/(ports|wiring)/|_(frames|messages|protocol)$|/(errors|job_record|job_spec|setting|timeline|worker_pipe)$"
)
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


def test_every_longer_file_outside_the_core_that_decides_is_where_some_symptom_leads():
    outside = [
        path.relative_to(ROOT)
        for folder in ("supervisor", "worker_client")
        for path in (ROOT / folder).rglob("*.py")
        if "core" not in path.parts and len(text := path.read_text().splitlines()) >= LINES_MIN
        if any(re.match(r"(async )?(def|class) [a-zA-Z]", line) for line in text)
    ]
    deciding = {str(path) for path in outside if not HELD.search(str(path.with_suffix("")))}
    assert len(deciding) > 400
    assert not deciding - set(re.findall(r"`([\w/]+\.py)`", TABLE.read_text()))


def test_the_index_of_the_architecture_page_names_files_of_these_rows_none_twice():
    page = INDEX.read_text()
    section = page[page.index("## Which file decides") : page.index("## The path of one fault")]
    named = re.findall(r"`((?:supervisor|worker_client)/[\w/]+\.py)`", section)
    assert len(named) > 60
    assert len(set(named)) == len(named)
    assert not set(named) - set(re.findall(r"`([\w/]+\.py)`", TABLE.read_text()))
