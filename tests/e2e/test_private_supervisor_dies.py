"""A private supervisor killed in the middle of a call costs nothing: the ranks start another, which continues."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from pathlib import Path

import pytest

from tests.e2e.alone import SCRIPT, Alone, alone
from tests.e2e.launch import wait_until

WORLD_SIZE = 4
ALL = range(WORLD_SIZE)
ROUNDS = 4


def begin(job: Alone) -> None:
    job.start_ranks()
    job.until(lambda: job.entered(0) == set(ALL), "the first iteration on all ranks")


def until_another(job: Alone, killed: int) -> None:
    job.until(lambda: len(now := job.supervisors()) == 1 and killed not in now, "another supervisor")


def succeed(job: Alone, *ranks: int) -> None:
    """The call ends on `ranks` with success, and nothing is left."""
    job.until_answered(*ranks)
    job.end()
    codes = job.codes()
    assert [codes[rank] for rank in ranks] == [0] * len(ranks), job.explained()
    assert sorted(int(str(line["value"])) for line in job.traced("returned")) == sorted(ranks)
    job.until_nothing_is_left()


def test_training_goes_on_and_the_call_succeeds(tmp_path: Path):
    with alone(tmp_path, WORLD_SIZE) as job:
        begin(job)
        killed = job.kill_supervisor()
        job.until_answered(*ALL)
        until_another(job, killed)
        succeed(job, *ALL)
        assert job.latest() == 0


def test_an_exception_restarts_all_ranks_under_the_new_one(tmp_path: Path):
    with alone(tmp_path, WORLD_SIZE) as job:
        begin(job)
        job.kill_supervisor()
        job.order("fail", 1)
        job.until(lambda: job.entered(1) == set(ALL), "the next iteration on all ranks")
        assert job.worlds(1) == {"4"}
        succeed(job, *ALL)


def test_a_rank_that_dies_afterwards_is_noticed_and_the_others_go_on(tmp_path: Path):
    with alone(tmp_path, WORLD_SIZE) as job:
        begin(job)
        until_another(job, job.kill_supervisor())
        job.order("die", 2)
        job.until(lambda: job.entered(job.latest()) == {0, 1, 3} != job.entered(0), "the next iteration without rank 2")
        assert job.worlds(job.latest()) == {"3"}
        succeed(job, 0, 1, 3)


def test_a_rank_that_dies_while_nobody_watches_is_missed(tmp_path: Path):
    with alone(tmp_path, WORLD_SIZE) as job:
        begin(job)
        job.processes[2].send_signal(signal.SIGSTOP)  # it is not the one that starts another supervisor
        job.kill_supervisor()
        job.processes[2].kill()
        job.until(lambda: len(job.entered(job.latest())) == 3, "the next iteration on three ranks")
        assert job.worlds(job.latest()) == {"3"}
        succeed(job, 0, 1, 3)


def test_a_rank_that_hangs_afterwards_is_restarted(tmp_path: Path):
    with alone(tmp_path, WORLD_SIZE) as job:
        begin(job)
        until_another(job, job.kill_supervisor())
        job.order("hang", 3)
        job.until(lambda: job.entered(1) == set(ALL), "the next iteration on all ranks")
        succeed(job, *ALL)


def test_it_may_die_again_and_in_the_next_call(tmp_path: Path):
    with alone(tmp_path, WORLD_SIZE) as job:
        job.start_ranks(calls=2)
        job.until(lambda: job.entered(0) == set(ALL), "the first iteration on all ranks")
        for iteration in (1, 2):
            until_another(job, job.kill_supervisor())
            job.order("fail", iteration)
            job.until(lambda: job.entered(iteration) == set(ALL), "the next iteration on all ranks")  # noqa: B023
        until_another(job, job.kill_supervisor())
        job.end()
        assert job.codes() == [0] * WORLD_SIZE, job.explained()
        assert len(job.traced("returned")) == 2 * WORLD_SIZE
        job.until_nothing_is_left()


def test_one_that_is_only_stopped_is_not_replaced(tmp_path: Path):
    with alone(tmp_path, WORLD_SIZE) as job:
        begin(job)
        (pid,) = job.supervisors()
        os.kill(pid, signal.SIGSTOP)
        job.order("fail", 1)
        job.until_answered(0, 2, 3)
        assert job.supervisors() == [pid]
        os.kill(pid, signal.SIGCONT)
        job.until(lambda: job.entered(1) == set(ALL), "the next iteration on all ranks")
        assert job.supervisors() == [pid]
        succeed(job, *ALL)


@pytest.mark.soak
def test_under_torchrun_too(tmp_path: Path):
    with alone(tmp_path, WORLD_SIZE) as job:
        job.start("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORLD_SIZE), SCRIPT)
        job.until(lambda: job.entered(0) == set(ALL), "the first iteration on all ranks")
        job.kill_supervisor()
        job.order("fail", 1)
        job.until(lambda: job.entered(1) == set(ALL), "the next iteration on all ranks")
        job.end()
        assert job.codes() == [0], job.explained()
        assert len(job.traced("returned")) == WORLD_SIZE
        job.until_nothing_is_left()


def test_at_any_moment_of_a_restart(tmp_path: Path):
    dice = random.Random(os.fsencode(tmp_path))
    with alone(tmp_path, WORLD_SIZE) as job:
        begin(job)
        for _ in range(ROUNDS):
            before = job.latest()
            job.order("fail", dice.randrange(WORLD_SIZE))
            with contextlib.suppress(AssertionError):  # at a random moment, or not at all
                wait_until(lambda: job.latest() > before, timeout_s=dice.uniform(0, 0.05), what="a restart")  # noqa: B023
            until_another(job, job.kill_supervisor())
            job.until(lambda: job.latest() > before and job.entered(job.latest()) == set(ALL), "the restart")  # noqa: B023
        succeed(job, *ALL)
