"""A probe leaves nothing, and fails where nothing can be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.edges.machine.folders import write_probe


def test_a_probe_leaves_nothing_and_fails_where_nothing_can_be_written(tmp_path: Path):
    write_probe.write(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="No such file"):
        write_probe.write(tmp_path / "none")
