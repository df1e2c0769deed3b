"""What can people do with a job that the supervisor has not taken over yet?"""

from __future__ import annotations

import anyio
import msgspec
import pytest

from supervisor.core.facts import JobState
from supervisor.core.process_facts import SilentSpawner
from supervisor.engine.recovery.expected_jobs import ExpectedJobs, StopAsked, with_stopped
from supervisor.errors import NotNowError
from supervisor.ports.reports import JobNodeReport, JobReport, RankReport, SectionReport

RANK = RankReport(0, 0, "n0", "running", pid=7, heartbeat_age_s=1.0, sections=(SectionReport("step", 0.5, 3.0),))
KNOWN = JobReport(
    "j", JobState.RUNNING, 1_000, reason="all ranks run", nodes=(JobNodeReport("n0", "ready"),), ranks=(RANK,)
)
STOPPED = SilentSpawner(17, "T", "is stopped (state T)")


async def test_people_wait_until_a_job_is_taken_over_or_known_not_to_answer() -> None:
    jobs = ExpectedJobs("n0")
    jobs.expect(["taken", "silent"])
    await jobs.until_known("another")
    assert (jobs.shown(), jobs.report("silent")) == ([], None)
    known: list[str] = []

    async def wait(job_id: str) -> None:
        await jobs.until_known(job_id)
        known.append(job_id)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait, "taken")
        tasks.start_soon(wait, "silent")
        await anyio.wait_all_tasks_blocked()
        assert known == []
        jobs.settle("taken")
        jobs.show(msgspec.structs.replace(KNOWN, job_id="silent"), lambda: STOPPED, list[int]().clear)
    assert sorted(known) == ["silent", "taken"]
    assert ("taken" in jobs, "silent" in jobs) == (False, True)
    assert jobs.shown() == [jobs.report("silent")]
    with pytest.raises(NotNowError, match=r"cannot restart job silent: its spawner .* does not answer"):
        jobs.check_not_expected("silent", "restart")
    jobs.settle("silent")
    jobs.check_not_expected("silent", "restart")


@pytest.mark.parametrize("is_shown_first", [True, False])
async def test_the_first_stop_counts_even_if_it_comes_before_the_job_is_known(is_shown_first: bool) -> None:
    jobs, ends = ExpectedJobs("n0"), list[int]()
    jobs.expect(["j"])
    assert not jobs.stop("another", "why", 0)
    if is_shown_first:
        jobs.show(KNOWN, lambda: STOPPED, lambda: ends.append(1))
    assert jobs.stop("j", "by ann", 2)
    assert jobs.stop("j", "by bob", 0)
    if not is_shown_first:
        jobs.show(KNOWN, lambda: STOPPED, lambda: ends.append(1))
    assert ends == [1]
    assert jobs.stop_asked("j") == StopAsked("by ann", 2)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(jobs.stop_all, "the end")
        await anyio.wait_all_tasks_blocked()
        jobs.settle("j")
    assert jobs.stop_asked("j") is None


def test_a_job_that_can_not_be_reached_is_shown_as_it_was_with_pid_state_and_remedy() -> None:
    jobs, spawner = ExpectedJobs("n0"), [STOPPED, None]
    jobs.expect(["j"])
    jobs.show(KNOWN, lambda: spawner[0], list[int]().clear)
    (shown,) = jobs.shown()
    assert shown.state is JobState.RUNNING
    assert "its spawner (pid 17) does not answer: it is stopped (state T)" in shown.reason
    assert "kill -CONT 17 continues it, and holdfast stop j ends the job" in shown.reason
    assert [(node.unreachable_pid, node.unreachable_state) for node in shown.nodes] == [(17, "T")]
    (rank,) = shown.ranks
    assert (rank.pid, rank.heartbeat_age_s, rank.sections) == (7, None, ())  # ages of then would be wrong now
    spawner.pop(0)
    assert jobs.stop("j", "by ann", 0)
    (ending,) = jobs.shown()
    assert (ending.state, ending.nodes[0].unreachable_pid) == (JobState.STOPPING, None)
    assert "by ann" in ending.reason


def test_of_several_nodes_the_one_with_the_stopped_spawner_is_marked() -> None:
    nodes = (JobNodeReport("n0", "active"), JobNodeReport("n1", "active"))
    shown = with_stopped(JobReport("j", JobState.RUNNING, 1, nodes=nodes), 17, node="n1")
    assert [node.unreachable_pid for node in shown.nodes] == [None, 17]
    assert shown.reason.startswith("its spawner (pid 17) is stopped (state T), so nothing can be started or ended")
