"""A job whose spawner does not answer is shown, can be stopped, and keeps its node from being drained."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.core.facts import JobState
from supervisor.edges.machine.journal.journal_reader import open_reader
from tests.e2e.daemons import NodeDaemon
from tests.e2e.launch import Launch, assert_nothing_left, wait_until

if TYPE_CHECKING:
    from tests.e2e.conftest import Start

pytestmark = pytest.mark.timeout(120)

# With a grandchild in a session of its own; ends once the file "go" is there.
SCRIPT = """
import os, subprocess, time
subprocess.Popen(["sleep", "600"], start_new_session=True)
print("on", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
"""
PTRACE_ATTACH, PTRACE_DETACH = 16, 17


@pytest.fixture
def daemon(tmp_path: Path) -> Generator[NodeDaemon]:
    with NodeDaemon(tmp_path / "daemon") as running:
        yield running


def with_job(start: Start, daemon: NodeDaemon) -> tuple[Launch, int]:
    """Returns a job that runs, and the pid of its spawner."""
    script = daemon.socket_dir.parent / "script.py"
    script.write_text(SCRIPT)
    launch = start("--nproc-per-node", "2", str(script), environment={"HOLDFAST_SOCKET_DIR": str(daemon.socket_dir)})
    launch.wait_for_output("on", count=2)
    # Of a job whose spawner does not answer, the journal is shown, which is written a little later.
    wait_until(lambda: is_recorded(daemon), timeout_s=10, what="the record that the job runs")
    return launch, spawner_of(launch)


def is_recorded(daemon: NodeDaemon) -> bool:
    with open_reader(daemon.state_dir) as reader:
        return any(job.state is JobState.RUNNING for job in reader.jobs(limit=10))


def spawner_of(launch: Launch) -> int:
    (spawner,) = [pid for pid in launch.leftovers() if Path(f"/proc/{pid}/comm").read_text() == "hf-spawner\n"]
    return spawner


def restart(daemon: NodeDaemon) -> None:
    daemon.kill()
    daemon.start()


def jobs(launch: Launch, *arguments: str) -> dict[str, dict[str, Any]]:
    shown = launch.holdfast(*arguments, "-o", "json").stdout
    return {job["job_id"]: job for job in json.loads(shown)["jobs"]}


@contextmanager
def held_by_a_debugger(pid: int) -> Generator[None]:
    """Holds a process so that SIGCONT has no effect. Only the thread that attached may detach."""
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(ptrace, PTRACE_ATTACH, pid, None, None).result() == 0
        wait_until(lambda: state_of(pid) == "t", timeout_s=10, what="the hold")
        yield
        thread.submit(ptrace, PTRACE_DETACH, pid, None, None).result()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def test_it_is_shown_blocks_drain_and_is_taken_over_once_it_goes_on(start: Start, daemon: NodeDaemon) -> None:
    launch, spawner = with_job(start, daemon)
    daemon.kill()
    os.kill(spawner, signal.SIGSTOP)
    daemon.start()
    said = f"its spawner (pid {spawner}) does not answer: it is stopped (state T)"
    for command in (("jobs",), ("status",), ("status", launch.job_id)):
        job = jobs(launch, *command)[launch.job_id]
        assert job["state"] == "running", command
        assert said in job["reason"], command
        assert job["nodes"][0]["unreachable"] == {"pid": spawner, "state": "T"}, command
        assert len(job["ranks"]) == 2, command
        assert said in " ".join(launch.holdfast(*command).stdout.split()), command
    refused = launch.holdfast("restart", launch.job_id, check=False)
    assert (refused.returncode, said in refused.stderr) == (1, True)
    refused = launch.holdfast("run", "--job-id", launch.job_id, "--no-python", "true", check=False)
    assert (refused.returncode, f"holdfast stop {launch.job_id}" in refused.stderr) == (75, True)
    with subprocess.Popen(
        [sys.executable, "-m", "supervisor", "drain"], env=launch.env, stderr=subprocess.PIPE, text=True
    ) as drain:
        assert drain.stderr is not None
        assert drain.stderr.readline().startswith("holdfast: node ")
        assert drain.stderr.readline().startswith(f"holdfast: waiting for job {launch.job_id} (running): {said}")
        with pytest.raises(subprocess.TimeoutExpired):
            drain.wait(1.0)
        os.kill(spawner, signal.SIGCONT)
        wait_until(
            lambda: not jobs(launch, "status")[launch.job_id]["nodes"][0]["unreachable"], timeout_s=10, what="it"
        )
        assert "goes on with 2 workers of the one before it" in launch.events()[-1]["reason"]  # type: ignore[operator]
        assert drain.poll() is None
        (launch.folder / "go").touch()
        assert launch.wait() == 0, launch.stderr_text()
        assert drain.wait(10) == 0
    assert [event["sequence"] for event in launch.events()] == [*range(1, len(launch.events()) + 1)]
    assert_nothing_left(launch)


def test_a_stop_continues_it_and_ends_the_job_as_always(start: Start, daemon: NodeDaemon) -> None:
    launch, spawner = with_job(start, daemon)
    os.kill(spawner, signal.SIGSTOP)
    restart(daemon)
    began_s = time.monotonic()
    launch.holdfast("stop", "--wait", launch.job_id)
    assert time.monotonic() - began_s < 10
    assert launch.wait() == 93
    assert jobs(launch, "jobs")[launch.job_id]["state"] == "stopped"
    assert "worker_exited" in launch.kinds()
    assert_nothing_left(launch)


def test_a_stop_kills_one_that_can_not_be_continued_with_all_that_it_started(start: Start, daemon: NodeDaemon) -> None:
    launch, spawner = with_job(start, daemon)
    daemon.kill()
    with held_by_a_debugger(spawner):
        daemon.start()
        job = jobs(launch, "status")[launch.job_id]
        assert f"its spawner (pid {spawner}) does not answer: it is held by a debugger (state t)" in job["reason"]
        assert job["nodes"][0]["unreachable"] == {"pid": spawner, "state": "t"}
        assert launch.holdfast("stop", "--wait", launch.job_id).returncode == 0
        assert_nothing_left(launch)
    assert launch.wait() == 93
    assert jobs(launch, "jobs")[launch.job_id]["state"] == "stopped"


def test_the_end_of_the_supervisor_ends_it_too(start: Start, daemon: NodeDaemon) -> None:
    launch, spawner = with_job(start, daemon)
    os.kill(spawner, signal.SIGSTOP)
    restart(daemon)
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(30) == 0
    assert_nothing_left(launch)


def test_without_a_restart_it_is_shown_too_and_a_stop_need_not_wait(start: Start, daemon: NodeDaemon) -> None:
    launch, spawner = with_job(start, daemon)
    os.kill(spawner, signal.SIGSTOP)
    job = jobs(launch, "status")[launch.job_id]
    assert job["state"] == "running"
    assert f"its spawner (pid {spawner}) is stopped (state T)" in job["reason"]
    assert job["nodes"][0]["unreachable"] == {"pid": spawner, "state": "T"}
    began_s = time.monotonic()
    launch.holdfast("stop", "--wait", launch.job_id)
    assert time.monotonic() - began_s < 8
    assert launch.wait() == 93
    assert_nothing_left(launch)
    assert f"the spawner (pid {spawner}) was stopped (state T) and is continued" in daemon.errors.read_text()
