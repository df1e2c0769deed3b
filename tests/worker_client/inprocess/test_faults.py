"""Does a call end correctly when callbacks fail, ranks leave, or unusual errors are raised? Real ranks."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.worker_client.inprocess.ranks import Job, ran, started

CALLBACKS = ("initialize", "health_check", "fn", "abort", "finalize", "completion", "terminate")


def iterations(job: Job, rank: int) -> list[int]:
    return [line["iteration"] for line in job.all(rank, "fn")]


# --- callbacks that fail, ranks that leave ---------------------------------------------------------------------------


def test_an_error_of_completion_changes_nothing(tmp_path: Path):
    job = ran(tmp_path, "completion_fails", 2)
    for rank in range(2):
        assert job.one(rank, "returned")["value"] == rank
        assert job.told(rank, "completion", "terminate") == ["completion"]
        assert "the call has succeeded all the same" in job.errors[rank]


def test_a_rank_that_dies_in_completion_takes_no_result_along(tmp_path: Path):
    with started(tmp_path, "killed_in_completion", 3) as job:
        assert job.wait() == [-9, 0, 0]
    assert [job.one(rank, "returned")["value"] for rank in (1, 2)] == [1, 2]


def test_an_error_of_terminate_replaces_the_one_that_ended_the_rank(tmp_path: Path):
    job = ran(tmp_path, "terminate_fails", 2)
    assert job.told(1)[-2:] == ["terminate", "raised"]
    assert len(job.all(1, "terminate")) == 1
    assert job.one(0, "returned")["value"] == 0


def test_an_error_of_abort_does_not_stop_the_restart(tmp_path: Path):
    job = ran(tmp_path, "abort_fails", 2)
    recovery = ["finalize", "health_check", "initialize", "health_check", "fn", "completion"]
    for rank in range(2):
        told = job.told(rank, *CALLBACKS)
        told.remove("abort")  # its thread may be faster than the function's
        assert told[-6:] == recovery
        assert job.one(rank, "returned")["value"] == 1


def test_two_faults_of_one_last_call_are_one_restart_whose_message_names_both(tmp_path: Path):
    with started(tmp_path, "two_fail_together", 4) as job:
        job.coordinator.faults_awaited = 2
        assert job.wait() == [0] * 4, job.errors
    assert [decision.iteration for decision in job.coordinator.decisions] == [1]
    for rank in range(4):
        assert iterations(job, rank)[-1] == 1
        assert len(job.all(rank, "abort")) == 1
        assert job.all(rank, "finalize")[0]["failed"] == ("ValueError" if rank in (1, 2) else None)
    for rank in (0, 3):
        assert job.one(rank, "interrupted")["message"] == "Interruption.EXCEPTION affecting ranks {1, 2}"


def test_inactive_ranks_see_that_they_have_no_rank(tmp_path: Path):
    job = ran(tmp_path, "inactive_environment", 2)
    seen = [job.one(rank, "environment")["environment"]["RANK"] for rank in range(2)]
    assert seen == ["0", "None"]


def test_a_rank_in_reserve_can_use_the_client_and_commit(tmp_path: Path):
    """Its RANK is the text "None", which is no mistake of the script."""
    job = ran(tmp_path, "client_in_reserve", 2)
    assert not job.coordinator.decisions
    assert iterations(job, 0) == [0]
    assert iterations(job, 1) == []
    for rank in range(2):
        assert job.one(rank, "client")["rank"] == rank
        assert len(job.all(rank, "saved")) == 1
        assert (tmp_path / f"saved-{rank}").read_text() == "by intention"


# --- what is raised --------------------------------------------------------------------------------------------------


def test_one_fault_is_tolerated_and_the_second_ends_the_rank(tmp_path: Path):
    job = ran(tmp_path, "one_fault_too_many", 2)
    assert iterations(job, 1) == [0, 1]
    assert job.one(1, "left")["cause"] == "FaultCounterExceeded"
    assert job.one(0, "returned")["value"] == 2


def test_any_exception_can_be_one_rank_s_fault(tmp_path: Path):
    """Not copyable, without a text, of a megabyte, deep, in long chains, in groups."""
    job = ran(tmp_path, "odd_exceptions", 2)
    assert [line["failed"] for line in job.all(1, "finalize")] == [
        "OddError", "ValueError", "ValueError", "ExceptionGroup",
    ]  # fmt: skip
    for rank in range(2):
        assert all(line["failed"] is None for line in job.all(rank, "initialize"))
        assert job.one(rank, "returned")["value"] == 4


# --- where the restart finds the main thread -------------------------------------------------------------------------


def test_the_restart_comes_through_wherever_python_code_runs(tmp_path: Path):
    """In our callbacks and in those that Python calls, some of which can't propagate an exception."""
    with started(tmp_path, "places", 9) as job:
        for rank in (0, 2, 3, 4, 5, 6, 7, 8):
            while job.read_line(rank)["what"] != "there":
                pass
        (tmp_path / "gone").touch()
        assert job.wait() == [0] * 9, job.errors
    for rank in range(9):
        assert job.one(rank, "returned")["value"] == 1
        assert job.all(rank, "fn")[-1]["iteration"] == 1
    # What Python can't propagate only ends the callback; then the function is interrupted.
    for rank in (3, 4, 5, 8):
        assert len(job.all(rank, "after")) == 1


def test_a_signal_handler_that_raises_takes_no_waiting_rank_out_of_the_call(tmp_path: Path):
    job = ran(tmp_path, "a_signal_handler_raises", 2)
    assert [job.one(rank, "struck")["where"] for rank in range(2)] == ["in arrive", "in wait_aborted"]
    assert [(decision.iteration, decision.world_size) for decision in job.coordinator.decisions] == [(1, 2)]
    for rank in range(2):
        assert iterations(job, rank) == [0, 1]
        assert job.one(rank, "returned")["value"] == rank
        assert "DataLoader worker is killed" in job.errors[rank]


# --- a second call ---------------------------------------------------------------------------------------------------


def test_calls_with_restarts_and_with_errors_leave_everything_as_it_was(tmp_path: Path):
    job = ran(tmp_path, "leaves_as_it_came", 2)
    for rank in range(2):
        assert [line["value"] for line in job.all(rank, "returned")] == [1, 1]
        assert job.told(rank, "returned", "aborted") == ["returned", "returned", "aborted"]
        assert [line["changed"] for line in job.all(rank, "compared")] == [{}] * 3


# --- ends ------------------------------------------------------------------------------------------------------------


def test_a_world_below_its_minimum_ends_on_all_ranks_in_the_same_iteration(tmp_path: Path):
    with started(tmp_path, "world_too_small", 3) as job:
        assert job.wait() == [-9, 0, 0]
    for rank in (1, 2):
        message = job.one(rank, "aborted")["message"]
        assert "iteration=1" in message
        assert "min_world_size=3" in message
        assert len(job.all(rank, "terminate")) == 1


def test_who_waits_too_long_for_the_others_leaves_with_a_barrier_timeout(tmp_path: Path):
    job = ran(tmp_path, "late_at_the_iteration_barrier", 2)
    message = job.one(1, "timeout")["message"]
    assert "cannot restart after iteration 0: rank 0 did not end theirs within 0:00:01" in message
    assert len(job.all(1, "terminate")) == 1
    assert job.one(0, "returned")["value"] == 1
    assert job.all(0, "fn")[-1]["environment"]["WORLD_SIZE"] == "1"


SUSPENDED = """
import sys, threading
from datetime import timedelta
from worker_client.call_protocol import BeginIteration, CallSettings
from worker_client.inprocess.coordinating.coordination import Coordination
from worker_client.inprocess.state import State

state = State(1, 3, active_rank=1, active_world_size=3)
coordination = Coordination(4, state, CallSettings(*[timedelta(seconds=1)] * 7), lambda frame: None)

def decide():
    sys.stdin.readline()
    coordination.heard(BeginIteration(4, 1, 3, frozenset()))

threading.Thread(target=decide, daemon=True).start()
print("waits", flush=True)
print(coordination.arrive(timedelta(seconds=4)).iteration)
"""


def test_of_a_time_in_which_all_ranks_are_suspended_little_counts() -> None:
    """As by docker pause or scontrol suspend."""
    command = [sys.executable, "-c", SUSPENDED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "waits\n"
        waiting.send_signal(signal.SIGSTOP)
        time.sleep(4.5)
        waiting.send_signal(signal.SIGCONT)
        time.sleep(0.3)
        decided, _ = waiting.communicate("now\n", timeout=20)
    assert (decided, waiting.returncode) == ("1\n", 0)


def test_without_all_ranks_nobody_enters(tmp_path: Path):
    job = ran(tmp_path, "never_enters", 2)
    assert (
        "within 0:00:01: rank 1 has not called it; call it equally often on all ranks; see holdfast stacks"
        in job.one(0, "timeout")["message"]
    )
    assert job.told(0, *CALLBACKS) == []
    (left,) = (frame.call_leave for each in job.coordinator.connections for frame in each.of("call_leave"))
    assert "rank 1 has not called it" in left.reason
