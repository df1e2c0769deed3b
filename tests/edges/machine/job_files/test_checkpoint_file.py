"""One integer, or unknown; unknown is never zero."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.edges.machine.job_files import checkpoint_file


@pytest.mark.parametrize(
    ("text", "iteration"),
    [
        (b"1500", 1500),
        (b" 0\n", 0),
        (b"", None),
        (b"release", None),
        (b"-3", None),
        (b"12.5", None),
        (b"12 13", None),
        (b"\xff\xfe", None),
        (b"9" * 19, None),
        (b"1" + b" " * 5000, None),
    ],
)
def test_the_integer_or_unknown(tmp_path: Path, text: bytes, iteration: int | None):
    path = tmp_path / "latest_checkpointed_iteration.txt"
    path.write_bytes(text)
    assert checkpoint_file.read_iteration(str(path)) == iteration


def test_what_is_no_file_is_unknown_and_does_not_block(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "missing"):
        assert checkpoint_file.read_iteration(str(path)) is None
