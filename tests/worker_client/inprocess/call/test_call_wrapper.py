"""Does the Wrapper call everything in order, on its thread, and restore what it took? Real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worker_client.inprocess.ranks import Job, ran, started

CALLBACKS = ("initialize", "health_check", "fn", "abort", "finalize", "completion", "terminate")


def on_main_thread(job: Job, rank: int) -> bool:
    return all((line["thread"] == "MainThread") == (line["what"] != "abort") for line in job.lines[rank])


def last_iteration(job: Job, rank: int) -> int:
    """If a rank fails at once, another may be interrupted before it has come to the function."""
    return job.all(rank, "fn")[-1]["iteration"]


@pytest.mark.parametrize("shares_page", [True, False])
def test_two_calls_leave_everything_as_it_was(tmp_path: Path, shares_page: bool):
    job = ran(tmp_path, "succeeds_twice", 2, shares_page=shares_page)
    for rank in range(2):
        assert job.told(rank, *CALLBACKS) == ["initialize", "health_check", "fn", "completion"] * 2
        assert [line["value"] for line in job.all(rank, "returned")] == [10 + rank, 20 + rank]
        assert on_main_thread(job, rank)
        assert job.all(rank, "fn")[0]["environment"]["RANK"] == str(rank)


def test_inactive_ranks_wait_and_return_none(tmp_path: Path):
    job = ran(tmp_path, "inactive_ranks", 2)
    assert job.told(0) == ["initialize", "health_check", "fn", "completion", "returned"]
    assert job.told(1) == ["initialize", "health_check", "completion", "returned"]
    assert job.one(0, "fn")["environment"]["WORLD_SIZE"] == "1"
    assert [job.one(rank, "returned")["value"] for rank in range(2)] == ["done", None]


@pytest.mark.alone
def test_an_exception_restarts_all_ranks_wherever_they_are(tmp_path: Path):
    """A loop, a sleep, a lock, a read: each ends within a moment of the restart."""
    job = ran(tmp_path, "exception_on_rank_1", 5)
    recovery = ["abort", "finalize", "health_check", "initialize", "health_check", "fn", "completion"]
    raised_s = job.one(1, "raise")["at"]
    for rank in range(5):
        assert job.told(rank, *CALLBACKS) == ["initialize", "health_check", "fn", *recovery]
        assert on_main_thread(job, rank)
        assert job.one(rank, "returned")["value"] == rank
        first, second = job.all(rank, "fn")
        assert (first["iteration"], second["iteration"]) == (0, 1)
        assert second["environment"] == first["environment"]
        assert second["at"] - raised_s < 1.0
        failed = [line["failed"] for line in job.lines[rank] if line["what"] in ("finalize", "health_check")]
        own = "ValueError" if rank == 1 else None
        assert failed == [None, own, own, None]
        if rank != 1:
            interrupted = job.one(rank, "interrupted")
            assert interrupted["kind"] == "RankShouldRestart"
            assert interrupted["message"] == "Interruption.EXCEPTION affecting ranks {1}"


def test_a_restart_takes_no_fixed_time(tmp_path: Path):
    """With defaults, including last_call_wait of a second."""
    job = ran(tmp_path, "restarts_quickly", 4)
    latest = [max(job.all(rank, "fn")[number]["at"] for rank in range(4)) for number in range(6)]
    raised = [line["at"] for line in job.all(1, "raise")]
    assert min(entered - failed for failed, entered in zip(raised, latest[1:], strict=True)) < 0.1


def test_a_base_exception_ends_its_rank_alone(tmp_path: Path):
    job = ran(tmp_path, "exits_on_rank_1", 3)
    assert job.told(1) == ["initialize", "health_check", "fn", "terminate", "exit"]
    assert job.one(1, "exit")["code"] == 7
    for rank, new_rank in ((0, 0), (2, 1)):
        again = job.all(rank, "fn")[-1]
        assert (again["environment"]["RANK"], again["environment"]["WORLD_SIZE"]) == (str(new_rank), "2")
        assert again["at"] <= job.one(1, "terminate")["at"] + 0.5
        assert job.one(rank, "returned")["value"] == rank


def test_a_killed_rank_0_is_an_ordinary_fault(tmp_path: Path):
    with started(tmp_path, "killed_rank_0", 3) as job:
        assert job.wait() == [-9, 0, 0]
    for rank in (1, 2):
        assert job.all(rank, "fn")[-1]["environment"]["RANK"] == str(rank - 1)
        assert job.one(rank, "returned")["value"] == rank


@pytest.mark.parametrize(
    ("scenario", "raised", "order"),
    [
        ("unhealthy_rank_1", {"cause": "ArithmeticError"}, ["abort", "finalize", "health_check", "terminate"]),
        ("finalize_fails_on_rank_1", {"message": "broken"}, ["abort", "finalize", "terminate"]),
    ],
)
def test_an_unfit_rank_leaves_with_its_error(tmp_path: Path, scenario: str, raised: dict[str, str], order: list[str]):
    job = ran(tmp_path, scenario, 2)
    assert job.told(1, *CALLBACKS) == ["initialize", "health_check", "fn", *order]
    assert raised.items() <= job.one(1, "raised").items()
    assert last_iteration(job, 0) == 1
    assert job.one(0, "returned")["value"] == 0


def test_a_fault_before_the_function_restarts_the_others_too(tmp_path: Path):
    job = ran(tmp_path, "initialize_fails_once_on_rank_1", 2)
    assert last_iteration(job, 0) == 1
    assert [line["iteration"] for line in job.all(1, "fn")] == [1]


@pytest.mark.parametrize("scenario", ["returned_already", "completion_times_out"])
def test_who_has_returned_runs_again_until_all_have(tmp_path: Path, scenario: str):
    """Waiting too long is no fault of the function: no rank has used up a count of zero."""
    job = ran(tmp_path, scenario, 2)
    for rank in range(2):
        assert [line["iteration"] for line in job.all(rank, "fn")] == [0, 1]
        assert job.one(rank, "returned")["value"] == 1


def test_retry_controller_ends_all_ranks_at_the_same_iteration(tmp_path: Path):
    job = ran(tmp_path, "aborted_everywhere", 2)
    for rank in range(2):
        assert "iteration=2" in job.one(rank, "aborted")["message"]
        assert len(job.all(rank, "terminate")) == 1


def test_no_active_rank_ends_the_call(tmp_path: Path):
    job = ran(tmp_path, "nobody_active", 2)
    assert "iteration=1" in job.one(0, "aborted")["message"]


def test_ranks_without_their_group_are_discarded(tmp_path: Path):
    with started(tmp_path, "discarded_with_its_group", 4) as job:
        assert job.wait() == [0, 0, 0, -9]
    assert job.told(2)[-2:] == ["terminate", "discarded"]
    for rank in (0, 1):
        assert job.all(rank, "fn")[-1]["environment"]["WORLD_SIZE"] == "2"
        assert job.one(rank, "returned")["value"] == rank


def test_what_the_abort_makes_a_function_raise_is_not_its_fault(tmp_path: Path):
    job = ran(tmp_path, "collateral", 2)
    assert job.one(0, "finalize")["failed"] is None
    assert job.one(1, "finalize")["failed"] == "ValueError"


def test_a_rank_that_is_refused_in_the_function_comes_out_of_it(tmp_path: Path):
    """Nobody waits for it any more: it would train on alone, or hang in a collective.

    An abort that went on afterwards would destroy the script's next process group.
    """
    with started(tmp_path, "refused_in_the_function", 1) as job:
        while job.read_line(0)["what"] != "fn":
            pass
        job.coordinator.refuse("cannot go on: by intention")
        assert job.wait() == [0]
    assert "by intention" in job.one(0, "refused")["message"]
    assert job.told(0, "abort", "aborted", "refused") == ["abort", "aborted", "refused"]


def test_no_abort_begins_after_a_refused_rank_has_left_the_function(tmp_path: Path):
    with started(tmp_path, "refused_before_the_abort", 1) as job:
        while job.read_line(0)["what"] != "fn":
            pass
        job.coordinator.refuse("cannot go on: by intention")
        assert job.wait() == [0]
    assert job.told(0, "abort", "refused") == ["refused"]


def test_a_task_group_does_not_hide_the_restart(tmp_path: Path):
    job = ran(tmp_path, "in_a_task_group", 2)
    assert [decision.world_size for decision in job.coordinator.decisions] == [2]
    assert [line["iteration"] for line in job.all(0, "fn")] == [0, 1]
    assert job.one(0, "finalize")["failed"] is None


def test_what_ends_the_process_does_so_beside_a_restart(tmp_path: Path):
    job = ran(tmp_path, "ends_in_a_task_group", 2)
    assert job.told(0)[-1] == "left"
    assert last_iteration(job, 1) == 1


def test_a_restart_that_comes_as_an_iteration_begins_is_expected_to_end_in_time(tmp_path: Path):
    job = ran(tmp_path, "interrupted_as_it_begins", 1)
    assert job.one(0, "fn")["is_unwinding"] is True


def test_nothing_of_a_failed_iteration_is_alive_in_the_next(tmp_path: Path):
    job = ran(tmp_path, "leaves_nothing_behind", 2)
    for rank in range(2):
        assert [line["alive"] for line in job.all(rank, "fn")] == [[], [False] * 2, [False] * 4]


def test_a_function_that_raises_the_restart_itself_is_at_fault(tmp_path: Path):
    job = ran(tmp_path, "raises_it_itself", 2)
    assert [line["iteration"] for line in job.all(1, "fn")] == [0, 1]
    assert last_iteration(job, 0) == 1


def test_a_hundred_restarts_at_random_moments(tmp_path: Path):
    job = ran(tmp_path, "restarts_many_times", 3)
    assert [job.one(rank, "returned")["value"] for rank in range(3)] == [100] * 3
    assert [decision.iteration for decision in job.coordinator.decisions] == list(range(1, 101))
    assert {decision.world_size for decision in job.coordinator.decisions} == {3}
