"""A line of source, if there is one; what would block, or is not a file, is not touched."""

from __future__ import annotations

import os
from pathlib import Path

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
