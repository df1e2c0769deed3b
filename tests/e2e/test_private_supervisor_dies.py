"""A private supervisor that is killed in the middle of a call costs nothing: the ranks start another, which goes on."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.alone import Alone, alone

WORLD_SIZE = 4
ALL = range(WORLD_SIZE)


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
