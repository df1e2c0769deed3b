"""Does the store that a wrapped function gets by default outlive the death of any rank under `holdfast run`?"""

from __future__ import annotations

from pathlib import Path

from tests.e2e.launch import SCRIPTS, assert_nothing_left, launched

WORD = "from iteration 0"


def test_the_launchers_store_outlives_rank_0(tmp_path: Path):
    options = ("--nproc-per-node", "2", "--max-restarts", "1", str(SCRIPTS / "wrapped_base_store.py"))
    with launched(tmp_path, *options) as launch:
        assert launch.wait(100) == 0, launch.explained()
        assert_nothing_left(launch)
        lines = [line for line in launch.stdout_text().splitlines() if "reads" in line]
        assert sorted(lines) == [f"rank {rank} reads {[WORD, WORD]}, fresh: True" for rank in (0, 1)]
