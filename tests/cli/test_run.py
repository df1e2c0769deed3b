"""Does a dry run say which supervisor would get the job?"""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.cli import run


@pytest.mark.parametrize("nodes", [(), ("--nnodes", "2", "--rdzv-id", "a", "--rdzv-endpoint", "127.0.0.1:7")])
def test_a_dry_run_says_that_nobody_serves_the_folder(
    nodes: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """On several nodes, too: a node's supervisor also takes such jobs."""
    assert run.execute_argv(["--dry-run", "--socket-dir", str(tmp_path), *nodes, "train.py"]) == 0
    assert f"none: nobody answers at {tmp_path}" in capsys.readouterr().out
