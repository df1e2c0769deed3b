"""Does the restart's exception come where it may, as often as it must, and nowhere else? Real ranks, one at a time."""

from __future__ import annotations

import itertools
from pathlib import Path

from tests.worker_client.inprocess.ranks import ran


def test_a_function_that_suppresses_it_is_interrupted_again_and_the_log_says_where(tmp_path: Path):
    job = ran(tmp_path, "suppressed", 2)
    suppressed = [line["at"] for line in job.all(0, "suppressed")]
    assert len(suppressed) == 3
    assert all(later - earlier > 0.03 for earlier, later in itertools.pairwise(suppressed))  # paced
    assert job.all(0, "fn")[1]["at"] - job.one(1, "raise")["at"] < 5.0
    told = [line for line in job.errors[0].splitlines() if "has suppressed RankShouldRestart" in line]
    assert told
    assert all("interruption_scenarios.py" in line and " in stay" in line for line in told)


def test_errors_while_releasing_are_logged_and_the_restart_goes_on(tmp_path: Path):
    job = ran(tmp_path, "releasing_fails", 2)
    for rank in (0, 1):
        assert job.told(rank, "fn", "returned") == ["fn", "fn", "returned"]
        assert "cleaning up after abort has failed; the restart goes on" in job.errors[rank]
        assert "OSError: by intention, at the end" in job.errors[rank]
    assert "releasing again has failed; the restart goes on" in job.errors[0]


def test_cleaning_up_is_not_interrupted(tmp_path: Path):
    job = ran(tmp_path, "cleans_up_slowly", 2)
    assert job.told(0) == ["fn", "cleaned", "fn", "returned"]


def test_an_import_is_not_interrupted(tmp_path: Path):
    """Python would drop the module, but not the operators that it has registered in C++."""
    job = ran(tmp_path, "while_importing", 2)
    assert [decision.iteration for decision in job.coordinator.decisions] == [1]
    assert len(job.all(0, "imported")) >= 1
    for rank in range(2):
        assert [line["iteration"] for line in job.all(rank, "fn")] == [0, 1]
        assert job.one(rank, "returned")["value"] == rank


def test_an_import_that_does_not_end_is_interrupted_after_a_limit(tmp_path: Path):
    job = ran(tmp_path, "an_import_hangs", 2)
    assert job.told(0, "imported") == []
    assert [line["iteration"] for line in job.all(0, "fn")] == [0, 1]
    assert job.all(0, "fn")[1]["at"] - job.one(1, "raise")["at"] > 0.9


def test_one_that_a_destructor_loses_is_raised_again(tmp_path: Path):
    job = ran(tmp_path, "in_a_destructor", 2)
    assert job.told(0) == ["fn", "destructor", "after destructor", "fn", "returned"]
    assert "RankShouldRestart" not in job.errors[0]  # Python would print what it could not propagate


def test_an_atomic_block_is_left_first_and_no_other_entered(tmp_path: Path):
    job = ran(tmp_path, "atomic", 2)
    assert job.told(0, "left the block", "abort", "in the second block") == ["left the block", "abort"]
    assert job.one(1, "abort")["at"] < job.one(0, "left the block")["at"]


def test_an_atomic_block_is_closed_while_aborting(tmp_path: Path):
    job = ran(tmp_path, "atomic_while_aborting", 2)
    assert not job.all(0, "in the block")
    assert job.all(0, "fn")[1]["at"] - job.one(0, "wants in")["at"] < 2.0


def test_any_thread_can_have_the_function_restarted(tmp_path: Path):
    job = ran(tmp_path, "aborted_from_a_thread", 2)
    for rank in (0, 1):
        assert job.told(rank, "fn", "abort", "returned") == ["fn", "abort", "fn", "returned"]
        assert job.one(rank, "finalize")["failed"] is None  # the function itself has raised nothing
        assert ["not inside a function" in line["message"] for line in job.all(rank, "refused")] == [True, True]
