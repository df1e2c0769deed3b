"""Does a wrapped function continue in the same processes under `holdfast run`, whatever happens to one of its ranks?"""

from __future__ import annotations

import itertools
from collections import defaultdict
from pathlib import Path

import pytest

from tests.e2e.launch import SCRIPTS, Launch, assert_nothing_left, launched

SCRIPT = str(SCRIPTS / "wrapped.py")
WORLD_SIZE = 3


def entered(launch: Launch, iteration: int) -> dict[object, dict[str, object]]:
    """Returns the entries by initial rank."""
    return {line["rank"]: line for line in launch.traced("fn") if line["iteration"] == iteration}


def worlds(launch: Launch) -> dict[object, set[object]]:
    """Returns the world sizes seen in each iteration."""
    seen: dict[object, set[object]] = defaultdict(set)
    for line in launch.traced("fn"):
        seen[line["iteration"]].add(line["world_size"])
    return seen


def after_s(launch: Launch, iteration: int = 1) -> float:
    """Returns the time from the fault to the entry of the last rank."""
    (fault,) = launch.traced("fault")
    return max(float(str(line["at"])) for line in entered(launch, iteration).values()) - float(str(fault["at"]))


def run(launch: Launch) -> None:
    assert launch.wait() == 0, launch.explained()
    assert_nothing_left(launch)
    assert all(len(sizes) == 1 for sizes in worlds(launch).values())


@pytest.mark.alone
def test_an_exception_restarts_all_in_their_processes(tmp_path: Path):
    with launched(tmp_path, "--nproc-per-node", str(WORLD_SIZE), SCRIPT, "exception") as launch:
        run(launch)
        assert set(entered(launch, 1)) == {0, 1, 2}
        assert after_s(launch) < 2.0
        assert sorted(str(line["value"]) for line in launch.traced("returned")) == ["0", "1", "2"]
        assert {"call_entered", "iteration_interrupted", "iteration_restarted", "call_committed"} <= set(launch.kinds())
        assert launch.kinds().count("worker_started") == WORLD_SIZE


def test_a_killed_rank_is_replaced_and_the_world_is_whole(tmp_path: Path):
    options = ("--nproc-per-node", str(WORLD_SIZE), "--max-restarts", "1")
    with launched(tmp_path, *options, SCRIPT, "kill") as launch:
        run(launch)
        again = entered(launch, 1)
        assert {str(line["as_rank"]) for line in again.values()} == {"0", "1", "2"}
        assert worlds(launch)[1] == {"3"}


@pytest.mark.parametrize("fault", ["kill", "exit"])
def test_without_a_budget_the_job_goes_on_smaller(tmp_path: Path, fault: str):
    options = ("--nproc-per-node", str(WORLD_SIZE), "--max-restarts", "0")
    with launched(tmp_path, *options, SCRIPT, fault) as launch:
        run(launch)
        again = entered(launch, 1)
        assert {rank: line["as_rank"] for rank, line in again.items()} == {0: "0", 2: "1"}
        assert worlds(launch)[1] == {"2"}


@pytest.mark.alone
@pytest.mark.parametrize("path", ["page", "frames"])
def test_a_rank_that_sleeps_restarts_after_the_soft_timeout(tmp_path: Path, path: str):
    environment = {"HOLDFAST_NO_SHARED_PAGE": "1"} if path == "frames" else {}
    options = ("--nproc-per-node", str(WORLD_SIZE), SCRIPT, "sleep")
    with launched(tmp_path, *options, environment=environment) as launch:
        run(launch)
        assert 1.9 < after_s(launch) < 4.0
        assert len(launch.traced("returned")) == WORLD_SIZE


@pytest.mark.parametrize("fault", ["gil", "stop"])
def test_a_rank_that_nothing_in_it_can_interrupt_is_killed_and_replaced(tmp_path: Path, fault: str):
    options = ("--nproc-per-node", str(WORLD_SIZE), "--max-restarts", "1")
    with launched(tmp_path, *options, SCRIPT, fault) as launch:
        run(launch)
        assert 2.9 < after_s(launch) < 6.0
        assert worlds(launch)[1] == {"3"}


def test_faults_at_random_never_split_the_world(tmp_path: Path):
    options = ("--nproc-per-node", str(WORLD_SIZE), "--max-restarts", "10")
    with launched(tmp_path, *options, SCRIPT, "random") as launch:
        run(launch)
        values = {line["value"] for line in launch.traced("returned")}
        assert len(launch.traced("returned")) == WORLD_SIZE
        assert len(values) == 1
        assert worlds(launch)[30] == {"3"}


@pytest.mark.parametrize("fault", ["exception", "kill"])
def test_a_pending_gloo_collective_holds_nobody_up(tmp_path: Path, fault: str):
    """Its own timeout is five minutes. Each iteration has a store that no earlier one has used."""
    options = ("--nproc-per-node", str(WORLD_SIZE), "--max-restarts", "1", str(SCRIPTS / "wrapped_gloo.py"), fault)
    with launched(tmp_path, *options) as launch:
        assert launch.wait(100) == 0, launch.explained()
        faults = {line["iteration"]: float(str(line["at"])) for line in launch.traced("fault")}
        for iteration in (1, 2):
            up_s = [float(str(line["at"])) for line in launch.traced("up") if line["iteration"] == iteration]
            assert len(up_s) == WORLD_SIZE
            assert max(up_s) - faults[iteration - 1] < 10.0
        assert len(launch.traced("returned")) == WORLD_SIZE


def test_a_section_that_an_exception_has_left_open_is_closed_before_the_next_iteration(tmp_path: Path):
    options = ("--nproc-per-node", str(WORLD_SIZE), "--ft-rank-section-timeouts", "step:120")
    with launched(tmp_path, *options, str(SCRIPTS / "wrapped_sections.py")) as launch:
        assert launch.wait(100) == 0, launch.explained()
        assert {line["iteration"] for line in launch.traced("fn")} == {0, 1}
        ends = launch.traced("returned")
        assert [line["is_monitored"] for line in ends] == [False] * WORLD_SIZE, "the first iteration's clients are gone"


def test_a_function_that_fails_at_once_each_time_does_not_spin_and_is_given_up(tmp_path: Path):
    script = str(SCRIPTS / "wrapped_hopeless.py")
    with launched(tmp_path, "--max-restarts", "0", script) as launch:
        assert launch.wait() == 1, launch.explained()
        called = [float(str(line["at"])) for line in launch.traced("fn")]
        (given_up,) = launch.traced("given up")
        assert "rank 0 has failed within 5 s in 30 iterations in a row; last: rank 0 failed: ValueError" in str(
            given_up
        )
        assert len(called) == 30
        pauses = [later - before for before, later in itertools.pairwise(called)]
        assert min(pauses[13:]) > 0.2
        assert sum(pauses[:10]) < sum(pauses[13:23])
        assert "iteration_delayed" in launch.kinds()
