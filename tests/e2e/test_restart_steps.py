"""Do all ranks agree on the world and continue, whichever step of a restart one of them dies in? Real processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.alone import alone
from tests.e2e.fault_rounds import SCRIPT, Traces, running, wait_while_it_goes_on
from tests.e2e.launch import assert_nothing_left
from tests.e2e.scripts.faulty_restart import BEGINNING, COMMITTED, ENDING, KINDS, removes

RANKS = 6
RANDOM_ROUNDS = int(os.environ.get("FAULT_ROUNDS", "25"))


def assert_as_planned(traces: Traces, step: str) -> None:
    assert traces.problems() == []
    assert [line["kind"] for line in sorted(traces.all("fault"), key=lambda line: line["iteration"])] == list(KINDS)
    assert traces.last_world_size() == RANKS - sum(removes(step, kind) for kind in KINDS)


# Each step with one of the two, by turns; the other one in `make soak`.
@pytest.mark.parametrize(
    ("step", "who"),
    [
        pytest.param(step, who, marks=[] if turn % 2 == number else pytest.mark.soak)
        for turn, step in enumerate((*ENDING, *BEGINNING))
        for number, who in enumerate(("first", "last"))
    ],
)
def test_a_rank_that_dies_in_a_step_is_missed_by_all_alike(tmp_path: Path, step: str, who: str):
    """By SIGKILL, os._exit, an exception, SystemExit; in turn, rank 0 or the last one each time."""
    with running(tmp_path, "--step", step, "--who", who, nproc=RANKS, max_restarts=0) as (launch, path):
        assert wait_while_it_goes_on(launch, path) == 0, launch.explained()
        assert_nothing_left(launch)
        traces = Traces.read(path)
    assert_as_planned(traces, step)


@pytest.mark.parametrize("step", [*ENDING, "completion_barrier"])
def test_the_same_under_a_private_supervisor(tmp_path: Path, step: str):
    """It starts no processes, and is no parent of any."""
    (traces := tmp_path / "traces").mkdir()
    with alone(tmp_path, RANKS, TRACES=str(traces)) as job:
        job.start_ranks(command=(str(SCRIPT), "--step", step, "--who", "first" if step in BEGINNING else "last"))
        job.codes()
        job.until_nothing_is_left()
    assert_as_planned(Traces.read(traces), step)


@pytest.mark.parametrize(
    ("kind", "who", "code"), [("kill", "first", 1), ("exit", "last", 1), ("raise", "last", 0), ("leave", "first", 1)]
)
def test_a_rank_that_dies_in_completion_is_a_failure_of_a_job_whose_call_has_succeeded(
    tmp_path: Path, kind: str, who: str, code: int
):
    """An exception of `completion` changes nothing, unless it is to end the process."""
    arguments = ("--step", COMMITTED, "--kinds", kind, "--who", who)
    with running(tmp_path, *arguments, nproc=3, max_restarts=0) as (launch, path):
        assert wait_while_it_goes_on(launch, path) == code, launch.explained()
        assert_nothing_left(launch)
        traces = Traces.read(path)
    assert len(traces.all("fault")) == 1
    assert {line["iteration"] for line in traces.all("returned")} <= {1}
    if kind == "raise":
        assert traces.problems() == []
        assert traces.last_world_size() == 3


@pytest.mark.parametrize("budget", [0, 2 * RANDOM_ROUNDS])
def test_faults_at_random_steps_and_moments(tmp_path: Path, budget: int):
    """`python -m tests.e2e.fault_rounds` runs more of them. Without a budget, the world shrinks to half its size."""
    arguments = ("--seed", str(budget), "--rounds", str(RANDOM_ROUNDS))
    with running(tmp_path, *arguments, nproc=8, max_restarts=budget) as (launch, path):
        assert wait_while_it_goes_on(launch, path) == 0, launch.explained()
        assert_nothing_left(launch)
        traces = Traces.read(path)
    assert traces.problems() == []
    assert len(traces.all("fault")) > 0
