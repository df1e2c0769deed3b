"""Does a rank of a real job commit while nobody can take its place, and does one that was replaced not?"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.e2e.launch import SCRIPTS, assert_nothing_left, launched

SCRIPT = str(SCRIPTS / "committing.py")
WITHOUT_PAGE = {"HOLDFAST_NO_SHARED_PAGE": "1"}


def left_beside(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir() if each.name.startswith(".holdfast-"))


def test_a_rank_that_is_stopped_just_before_its_rename_is_gone_before_the_next_cycle_commits(tmp_path: Path):
    with launched(tmp_path, "--nproc-per-node", "2", "--max-restarts", "1", SCRIPT, "held") as launch:
        (inside,) = launch.wait_for_trace("inside")
        pid = int(str(inside["pid"]))
        os.kill(pid, signal.SIGSTOP)
        (tmp_path / "fail").touch()
        assert launch.wait() == 0, launch.explained()
        assert not Path(f"/proc/{pid}").exists()
        assert (tmp_path / "checkpoint").read_text() == "40"
        assert left_beside(tmp_path) == [".holdfast-token-checkpoint"]
        assert_nothing_left(launch)


@pytest.mark.parametrize("environment", [{}, WITHOUT_PAGE], ids=["page", "frames"])
def test_a_rank_commits_while_its_supervisor_is_stopped(tmp_path: Path, environment: dict[str, str]):
    with launched(tmp_path, SCRIPT, "monitored", environment=environment) as launch:
        launch.wait_for_trace("ready")
        launch.process.send_signal(signal.SIGSTOP)
        (tmp_path / "go").touch()
        (took,) = launch.wait_for_trace("took")
        launch.process.send_signal(signal.SIGCONT)
        assert float(str(took["took_s"])) < 3.0
        assert launch.wait() == 0, launch.explained()
        assert (tmp_path / "checkpoint").read_text() == "10"


@pytest.mark.parametrize("environment", [{}, WITHOUT_PAGE], ids=["page", "frames"])
def test_a_script_that_only_commits_needs_no_client_of_its_own(tmp_path: Path, environment: dict[str, str]):
    with launched(tmp_path, SCRIPT, "plain", environment=environment) as launch:
        assert launch.wait() == 0, launch.explained()
        (saved,) = launch.traced("saved")
        assert int(str(saved["token"])) > 0
        assert launch.stderr_text() == ""


def test_a_thread_of_an_earlier_iteration_does_not_replace_what_the_next_one_has_committed(tmp_path: Path):
    with launched(tmp_path, "--nproc-per-node", "2", SCRIPT, "wrapped") as launch:
        assert launch.wait() == 0, launch.explained()
        (lost,) = launch.traced("lost")
        assert "the Wrapper has begun another iteration" in str(lost["why"])
        assert (tmp_path / "checkpoint").read_text() == "40"


def test_all_ranks_write_a_distributed_checkpoint_into_the_folder_that_one_commits(tmp_path: Path):
    with launched(tmp_path, "--nproc-per-node", "2", SCRIPT, "sharded") as launch:
        assert launch.wait() == 0, launch.explained()
        assert [(each["step"], each["weights"]) for each in launch.traced("read")] == [(40, [40.0] * 4)] * 2
        assert left_beside(tmp_path) == [".holdfast-token-checkpoint"]
        assert ".metadata" in [each.name for each in (tmp_path / "checkpoint").iterdir()]
