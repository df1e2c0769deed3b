"""A log that an earlier run has begun gets a mark, and readers find it; nothing else is taken for one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from holdfast_wire.run_mark import MARK_BYTES, mark_if_of_earlier_run, marks_in, run_begun_by, run_time

BEGAN_MS = 1_764_419_405_023
MARK = b"\n[holdfast: the run of 2025-11-29T12:30:05.023Z begins here]\n"


@pytest.mark.parametrize(
    ("content", "written_s", "began_ms", "is_marked"),
    [
        (b"0: cut o", BEGAN_MS / 1000 - 1, BEGAN_MS, True),
        (b"0: of another node\n", BEGAN_MS / 1000 + 1, BEGAN_MS, False),
        (b"", BEGAN_MS / 1000 - 1, BEGAN_MS, False),
        (b"0: old\n", BEGAN_MS / 1000 - 1, 0, False),
    ],
)
def test_a_file_gets_a_mark_if_only_earlier_runs_have_written_it(
    tmp_path: Path, content: bytes, written_s: float, began_ms: int, is_marked: bool
) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    os.utime(path, (written_s, written_s))
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    assert mark_if_of_earlier_run(fd, began_ms) == is_marked
    assert not mark_if_of_earlier_run(fd, began_ms)  # it is of this run now
    os.close(fd)
    assert path.read_bytes() == content + MARK * is_marked


def test_marks_are_found_and_name_their_runs_in_order() -> None:
    later = MARK.replace(b".023Z", b".024Z")
    assert len(MARK) == MARK_BYTES
    assert list(marks_in(b"0: x\n" + MARK + b"0: y\n" + later)) == [
        (5, run_time(BEGAN_MS)), (10 + len(MARK), run_time(BEGAN_MS + 1)),
    ]  # fmt: skip
    assert run_begun_by(MARK.strip()) == run_time(BEGAN_MS) < run_time(BEGAN_MS + 1)
    assert run_time(0) == ""


@pytest.mark.parametrize(
    "line", [b"0: " + MARK.strip(), MARK.strip() + b"x", b"[holdfast: the run of x begins here]", b""]
)
def test_other_lines_are_no_marks(line: bytes) -> None:
    assert run_begun_by(line) == ""
    assert list(marks_in(b"\n" + line + b"\n")) == []
