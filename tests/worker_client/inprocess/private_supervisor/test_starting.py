"""Ranks and supervisors are killed and stopped at each step of a start: one supervisor serves, and all ranks find it.

The supervisor that a rank started waits at a named step until the test releases it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from holdfast_wire.private_supervisor import LIFE_FILE

from tests.e2e.launch import wait_until
from worker_client.endpoint import Endpoint
from worker_client.inprocess.exception import InternalError
from worker_client.inprocess.private_supervisor import job_folder, supervisor_lookup

TIMEOUT_S = 60
STEPS = ("exec", "claim", "tell", "ready")
# Replaces Python: a supervisor that prints its pid and waits at one step.
SLOW_PYTHON = """#!{python}
import os, sys
folder, step = {folder!r}, {step!r}
def stand(at):
    if at == step:
        with open(f"{{folder}}/told.new", "w") as told:
            told.write(str(os.getpid()))
        os.rename(f"{{folder}}/told.new", f"{{folder}}/told")
        open(f"{{folder}}/gate").read()
stand("exec")
from supervisor.cli import adopt, main
from supervisor.edges.machine.folders.adopted_dir import AdoptedDir
serve, tell, say = adopt._serve, AdoptedDir.tell, adopt._Starter.say
def slow_serve(*given): stand("claim"); serve(*given)
def slow_tell(*given): stand("tell"); tell(*given)
def slow_say(*given): stand("ready"); say(*given)
adopt._serve, AdoptedDir.tell, adopt._Starter.say = slow_serve, slow_tell, slow_say
sys.argv = ["holdfast", *sys.argv[3:]]
sys.exit(main())
"""
# A rank whose supervisor is slow; the gate "before" keeps the rank itself from starting one.
RANK = """
import os, subprocess, sys
from worker_client.inprocess.private_supervisor.supervisor_lookup import find_or_start
folder = sys.argv[1]
class Shell(subprocess.Popen):
    def __init__(self, *given, **more):
        if os.path.exists(f"{folder}/before"):
            print("in turn", flush=True)
            open(f"{folder}/before").read()
        super().__init__(*given, **more)
subprocess.Popen, sys.executable = Shell, f"{folder}/python"
found = find_or_start(os.environ)
print(found.token.hex(), flush=True)
sys.stdin.read()
"""


class Job:
    """One rank starts the supervisor; the test itself is the other rank."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        given = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST", "FT_", "SLURM"))}
        self.environment = given | {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29997", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": folder.name,
            "HOLDFAST_STATE_DIR": str(folder / "state"), "XDG_RUNTIME_DIR": str(folder),
        }  # fmt: skip
        self.home = job_folder.job_folder(self.environment)
        os.mkfifo(folder / "gate")
        self.rank: subprocess.Popen[str] | None = None
        self.slow: psutil.Process | None = None
        self._pool = ThreadPoolExecutor(1)

    def start(self, step: str) -> subprocess.Popen[str]:
        python = self.folder / "python"
        python.write_text(SLOW_PYTHON.format(python=sys.executable, folder=str(self.folder), step=step))
        python.chmod(0o755)
        self.rank = subprocess.Popen(
            [sys.executable, "-c", RANK, str(self.folder)], env=self.environment, text=True, stdin=-1, stdout=-1
        )
        return self.rank

    def until_it_stands(self) -> psutil.Process:
        """Returns the supervisor that the rank started, once it is at its step."""
        told = self.folder / "told"
        wait_until(told.exists, timeout_s=TIMEOUT_S, what="the step")
        self.slow = psutil.Process(int(told.read_text()))
        return self.slow

    def let_go(self, gate: str = "gate") -> None:
        """Opens the gate for writing, which waits for the process there."""
        with (self.folder / gate).open("w"):
            pass

    def other_rank(self) -> Future[Endpoint]:
        """Returns once the other rank waits, or has found one."""
        asked = self._pool.submit(supervisor_lookup.find_or_start, self.environment)
        wait_until(
            lambda: asked.done() or any("lock-wait" in thread.name for thread in threading.enumerate()),
            timeout_s=TIMEOUT_S, what="the other rank's wait",
        )  # fmt: skip
        return asked

    def serving(self) -> psutil.Process:
        return psutil.Process(int((self.home / LIFE_FILE).read_text()))

    def assert_served(self, found: Endpoint) -> None:
        """Every rank finds it from now on."""
        assert job_folder.find(self.home, self.environment) == found
        assert supervisor_lookup.find_or_start(self.environment) == found
        assert self.serving().is_running()

    def close(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            if self.slow is not None:
                self.slow.kill()
        if self.rank is not None:
            self.rank.kill()
            self.rank.communicate()
        self._pool.shutdown()
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
            self.serving().kill()
        shutil.rmtree(self.home, ignore_errors=True)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.close()


def said(rank: subprocess.Popen[str]) -> str:
    assert rank.stdout is not None
    return rank.stdout.readline().strip()


@pytest.mark.parametrize("step", STEPS)
def test_a_rank_that_is_killed_while_its_supervisor_starts_leaves_it_to_the_others(job: Job, step: str):
    rank = job.start(step)
    slow = job.until_it_stands()
    rank.kill()
    rank.wait(TIMEOUT_S)
    asked = job.other_rank()
    job.let_go()
    found = asked.result(TIMEOUT_S)
    wait_until(
        lambda: not slow.is_running() or job.serving() == slow, timeout_s=TIMEOUT_S, what="an end of the slow start"
    )
    job.assert_served(found)
    assert job.serving() == slow


@pytest.mark.parametrize("step", STEPS[:-1])
def test_a_supervisor_that_is_killed_while_it_starts_is_replaced_by_the_next_rank(job: Job, step: str):
    rank = job.start(step)
    slow = job.until_it_stands()
    asked = job.other_rank()
    slow.kill()
    assert said(rank) == ""  # it has told its user, and ended
    job.assert_served(asked.result(TIMEOUT_S))
    assert job.serving() != slow


def test_a_stopped_rank_holds_nobody_up_and_finds_what_it_has_started(job: Job):
    rank = job.start("exec")
    job.until_it_stands()
    rank.send_signal(signal.SIGSTOP)
    asked = job.other_rank()
    job.let_go()
    found = asked.result(TIMEOUT_S)
    rank.send_signal(signal.SIGCONT)
    assert said(rank) == found.token.hex()
    job.assert_served(found)


def test_a_rank_that_is_stopped_in_its_turn_is_passed_over_and_finds_what_others_have(
    job: Job, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(supervisor_lookup, "TURN_MARGIN_S", -supervisor_lookup.START_TIMEOUT_S)
    os.mkfifo(job.folder / "before")
    rank = job.start("none")
    assert said(rank) == "in turn"
    found = supervisor_lookup.find_or_start(job.environment)
    job.let_go("before")
    assert said(rank) == found.token.hex()
    job.assert_served(found)


@pytest.mark.parametrize("step", STEPS)
def test_two_that_start_at_once_are_one_in_the_end(job: Job, monkeypatch: pytest.MonkeyPatch, step: str):
    """As if there were no lock between them."""
    monkeypatch.setattr(supervisor_lookup, "TURN_MARGIN_S", -supervisor_lookup.START_TIMEOUT_S)
    rank = job.start(step)
    slow = job.until_it_stands()
    asked = job._pool.submit(supervisor_lookup.find_or_start, job.environment)  # pyright: ignore[reportPrivateUsage]
    if step == "exec":
        job.assert_served(asked.result(TIMEOUT_S))
    job.let_go()
    found = asked.result(TIMEOUT_S)
    assert said(rank) == found.token.hex()
    job.assert_served(found)
    assert (job.serving() == slow) == (step != "exec")


def test_one_that_lives_and_does_not_answer_is_told_and_left_alone(job: Job):
    found = supervisor_lookup.find_or_start(job.environment)
    serving = job.serving()
    serving.suspend()  # otherwise it might get a new socket the next moment
    Path(found.socket_path).unlink()
    with pytest.raises(InternalError, match="does not answer; see whether it is stopped"):
        supervisor_lookup.find_or_start(job.environment, start_timeout_s=0.5)
    serving.resume()
    wait_until(lambda: job_folder.find(job.home, job.environment), timeout_s=TIMEOUT_S, what="its socket")
    job.assert_served(found)
