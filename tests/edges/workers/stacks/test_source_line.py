"""A line of source, if there is one; what would block, or is not a file, is not touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.core.process_facts import Frame
from supervisor.edges.workers.stacks.source_line import source_line


def test_the_line_at_which_a_stack_ends(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os\n    with lock:\n")
    assert source_line(Frame(str(script), "f", 2)) == "with lock:"
    assert source_line(Frame(str(script), "f", 3)) == ""
    assert source_line(Frame(str(script), "f", 0)) == ""
    assert source_line(Frame("train.py", "f", 1)) == ""
    assert source_line(Frame(str(tmp_path / "gone.py"), "f", 1)) == ""
    assert source_line(Frame(str(tmp_path), "f", 1)) == ""
    assert source_line(Frame("/dev/zero", "f", 1)) == ""
    assert source_line(Frame("/a\0b", "f", 1)) == ""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert source_line(Frame(str(fifo), "f", 1)) == ""


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_are_counted_as_python_counts_them(tmp_path: Path, end: str) -> None:
    """Emacs users separate the parts of a file by page breaks; a string may have any separator in it."""
    script, lines = (
        tmp_path / "train.py",
        ["a = 1", "\x0c", "b = '\x0b\x1c\x85\u2028'", "\x0cimport inspect; line = inspect.currentframe().f_lineno"],
    )
    script.write_bytes(end.join(lines).encode())
    found: dict[str, int] = {}
    exec(compile(script.read_bytes(), str(script), "exec"), found)
    assert source_line(Frame(str(script), "f", found["line"])) == lines[-1].strip()
