"""Only a dead spawner's leftovers are killed: our descendants, outside our session, of this job, not older than it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import anyio
import psutil
import pytest
from holdfast_wire.private_supervisor import JOB_ID_VARIABLE, LOG_OF_VARIABLE, SPAWNER_VARIABLE

from supervisor.edges.machine.processes import process_table
from supervisor.edges.workers.spawner.lost_spawner_processes import Orphans, kill_cgroup, wait_for_end
from tests.edges.workers.worker_side import until

NAME = "of-1-0123"
# A parent that starts an orphan in a separate session, prints its pid, and dies.
ORPHAN = "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True, stdout=-3).pid)"
# A spawner with a worker and a log process, which shows the variable that is named; prints their pids.
SPAWNER = """
import subprocess, sys, time
for env in {}, {sys.argv[1]: "job"}:
    print(subprocess.Popen(["sleep", "600"], env=env, start_new_session=True, stdout=-3).pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def orphan():
    process_table.become_subreaper()
    made: list[psutil.Process] = []

    def make(job_id: str, spawner: str = NAME) -> psutil.Process:
        env = {**os.environ, JOB_ID_VARIABLE: job_id, SPAWNER_VARIABLE: spawner}
        parent = subprocess.run([sys.executable, "-c", ORPHAN], env=env, stdout=subprocess.PIPE, check=True, timeout=30)
        made.append(psutil.Process(int(parent.stdout)))
        return made[-1]

    yield make
    for process in made:
        if process.is_running():
            process.kill()
            process.wait(10)


def _spawner(*command: str, stdout: int | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=stdout, start_new_session=True)


async def _emptied(orphans: Orphans, others: frozenset[int]) -> None:
    with anyio.fail_after(10):
        while left := orphans.sweep(others=others):
            assert await wait_for_end(left)


async def test_an_escapee_of_this_job_is_killed_and_reaped_and_another_jobs_is_not(
    orphan: Callable[[str], psutil.Process],
):
    spawner = _spawner("sleep", "600")
    orphans = Orphans("job", spawner.pid, NAME)
    mine, other = orphan("job"), orphan("other")
    await until(lambda: mine.ppid() == os.getpid())
    try:
        assert orphans.kill(others=frozenset({spawner.pid})) == [mine.pid]
        await _emptied(orphans, frozenset({spawner.pid}))
        assert not psutil.pid_exists(mine.pid)
        assert other.is_running()
        assert spawner.poll() is None
    finally:
        spawner.kill()
        spawner.wait(10)


async def test_an_escapee_of_the_next_spawner_of_the_job_is_left_alone(orphan: Callable[..., psutil.Process]):
    spawner = _spawner("true")
    orphans = Orphans("job", spawner.pid, NAME)
    theirs = orphan("job", "of-1-4567")
    await until(lambda: theirs.ppid() == os.getpid())
    assert orphans.kill(others=frozenset()) == []
    assert theirs.is_running()
    spawner.wait(10)


async def test_the_process_that_writes_the_logs_is_left_alone_though_its_spawner_still_lives():
    process_table.become_subreaper()
    with _spawner(sys.executable, "-c", SPAWNER, LOG_OF_VARIABLE, stdout=subprocess.PIPE) as spawner:
        assert spawner.stdout is not None
        worker, writer = (psutil.Process(int(spawner.stdout.readline())) for _ in range(2))
        await until(lambda: process_table.initial_variable(writer.pid, LOG_OF_VARIABLE) == "job")  # it has executed
        orphans = Orphans("job", spawner.pid, NAME)
        try:
            assert orphans.kill(others=frozenset()) == sorted((spawner.pid, worker.pid))
            await _emptied(orphans, frozenset())
            assert writer.status() != psutil.STATUS_ZOMBIE
        finally:
            spawner.kill()
            writer.kill()
            writer.wait(10)


async def test_a_session_of_a_worker_counts_whatever_its_environment(orphan: Callable[[str], psutil.Process]):
    spawner = _spawner("true")
    orphans = Orphans("job", spawner.pid, NAME)
    unmarked = orphan("")
    await until(lambda: unmarked.ppid() == os.getpid())
    assert orphans.kill(others=frozenset()) == []
    orphans.note_session(unmarked.pid, 3)
    assert orphans.kill(others=frozenset()) == [unmarked.pid]
    await _emptied(orphans, frozenset())
    spawner.wait(10)


async def test_a_cycle_of_which_nothing_is_left_has_no_sessions(orphan: Callable[[str], psutil.Process]):
    """Its pids may belong to another job by now."""
    spawner = _spawner("true")
    orphans = Orphans("job", spawner.pid, NAME)
    others, unmarked = orphan(""), orphan("")
    await until(lambda: others.ppid() == unmarked.ppid() == os.getpid())
    orphans.note_session(others.pid, 3)
    orphans.note_session(unmarked.pid, 4)
    orphans.forget_sessions(3)
    assert orphans.kill(others=frozenset()) == [unmarked.pid]
    await _emptied(orphans, frozenset())
    assert others.is_running()
    spawner.wait(10)


async def test_what_was_there_before_the_spawner_is_not_its_own(orphan: Callable[[str], psutil.Process]):
    older = orphan("job")
    await until(lambda: older.ppid() == os.getpid())
    tick = os.sysconf("SC_CLK_TCK")
    began = process_table.look_up(older.pid)
    assert began is not None

    def started_later() -> bool:
        probe = subprocess.Popen(["true"])
        entry = process_table.look_up(probe.pid)
        probe.wait(10)
        return entry is not None and entry.started_ticks > began.started_ticks

    await until(started_later, at_most_s=5 + 5 / tick)
    spawner = _spawner("sleep", "600")
    orphans = Orphans("job", spawner.pid, NAME)
    spawner.send_signal(signal.SIGKILL)
    spawner.wait(10)
    assert orphans.kill(others=frozenset()) == []
    assert older.is_running()


def test_a_cgroup_that_is_not_there_is_nothing():
    kill_cgroup("")
    kill_cgroup("/sys/fs/cgroup/of-nobody/here")
