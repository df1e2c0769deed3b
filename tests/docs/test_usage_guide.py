"""Does everything that the reference product's guides name exist, and do their examples run with a changed import?

Examples of single rank assignments: tests/worker_client/inprocess/rank_assignment.
"""

from __future__ import annotations

import re
from operator import attrgetter
from pathlib import Path

import pytest

from tests.e2e.launch import SCRIPTS, assert_nothing_left, launched
from worker_client import inprocess

SCRIPT = str(SCRIPTS / "wrapped_as_the_guide.py")

NAMES = """
    Wrapper CallWrapper.ping CallWrapper.atomic Compose compose.Compose State state.State
    store.StoreMixin store.TCPStore abort.Abort abort.AbortTorchDistributed abort.AbortTransformerEngine
    initialize.Initialize initialize.RetryController finalize.Finalize
    health_check.HealthCheck health_check.CudaHealthCheck nested_restarter.NestedRestarterHandlingCompleted
    rank_assignment.RankAssignment rank_assignment.RankFilter rank_assignment.Layer rank_assignment.LayerFlag.RESERVE
    rank_assignment.LayerFlag.BACKFILL rank_assignment.Tree rank_assignment.FillGaps rank_assignment.ShiftRanks
    rank_assignment.FilterCountGroupedByKey rank_assignment.ActivateAllRanks rank_assignment.MaxActiveWorldSize
    rank_assignment.ActiveWorldSizeDivisibleBy rank_assignment.RankDiscarded
    exception.RestartError exception.RestartAbort exception.HealthCheckError exception.InternalError
    exception.TimeoutError health_check.FaultCounterExceeded store.BarrierError store.BarrierTimeout
    store.BarrierOverflow monitor_thread.RankShouldRestart monitor_thread.async_raise
    monitor_thread.delayed_async_raise monitor_thread.reraise_if_unraisable monitor_thread.async_abort_main_thread
    progress_watchdog.Timestamp attribution.Interruption attribution.InterruptionRecord.from_str
"""


@pytest.mark.parametrize("name", NAMES.split())
def test_what_the_guides_and_scripts_name_is_there(name: str):
    assert attrgetter(name)(inprocess) is not None


def test_what_needs_a_monitor_process_is_not():
    for name in ("monitor_process", "sibling_monitor", "utils", "param_utils"):
        assert not hasattr(inprocess, name)


@pytest.mark.parametrize(
    ("assignment", "world_size", "first", "second", "discarded"),
    [
        ("groups", 4, 4, 2, 1),  # rank 2 goes with rank 3
        ("reserve", 5, 4, 4, 0),  # rank 4 stands in
        ("tree", 6, 4, 4, 1),  # the reserve's group replaces the group of ranks 2 and 3
    ],
)
def test_the_guide_s_examples_survive_a_killed_rank(
    tmp_path: Path, assignment: str, world_size: int, first: int, second: int, discarded: int
):
    options = ("--nproc-per-node", str(world_size), "--max-restarts", "0")
    with launched(tmp_path, *options, SCRIPT, assignment) as launch:
        assert launch.wait(100) == 0, launch.explained()
        assert_nothing_left(launch)
        output = launch.stdout_text()
        for iteration, active in ((0, first), (1, second)):
            began = re.findall(rf"iteration {iteration}: (\d) of (\d)", output)
            assert sorted(began) == [(str(rank), str(active)) for rank in range(active)], output
        assert output.count("discarded") == discarded
        assert len(re.findall(r"returned \d", output)) == second
        assert "name=[InProcess] state=handling stage=completed" in output
