"""A user does to her own supervisor what the kernel lets her do: the service, root and other users notice nothing."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from supervisor.edges.machine.processes import process_table
from tests.e2e import many_users
from tests.e2e.launch import SCRIPTS
from tests.e2e.many_users import Service, until

ALICE, BOB = 54321, 54322
WHO_AM_I = str(SCRIPTS / "who_am_i.py")
TAKE_OVER = str(SCRIPTS / "take_over.py")
HOLDFAST = (sys.executable, "-m", "supervisor")
ANSWER_S = 5.0  # on a loaded machine; most of it is the start of an interpreter
ROUNDS = 3

pytestmark = pytest.mark.skipif(bool(many_users.missing()), reason=many_users.missing())
needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="take_over.py knows x86-64 alone")


@pytest.fixture
def service() -> Iterator[Service]:
    with many_users.service("--users", "all") as running:
        yield running


@pytest.fixture
def of_alice(service: Service) -> Iterator[subprocess.Popen[str]]:
    run = service.started(ALICE, *HOLDFAST, "run", "--job-id", "of-alice", WHO_AM_I, "stay")
    assert run.stdout is not None
    assert json.loads(run.stdout.readline())["uids"] == [ALICE] * 3
    yield run
    run.kill()
    run.communicate()


def _is_under_another(service: Service, pid: int) -> bool:
    return service.supervisor_of(ALICE)[1] != pid


def _answered_soon(service: Service, uid: int) -> None:
    began_s = time.monotonic()
    assert service.holdfast(uid, "jobs").returncode == 0
    assert time.monotonic() - began_s < ANSWER_S


@needs_x86
def test_a_user_can_trace_workers_and_not_the_supervisor(service: Service, of_alice: subprocess.Popen[str]):
    _, supervisor = service.supervisor_of(ALICE)
    assert service.run(ALICE, sys.executable, TAKE_OVER, str(supervisor)).stdout.startswith("refused: ")
    below = [entry.pid for entry in process_table.descendants(supervisor)]
    assert below
    for pid in below:
        assert Path(f"/proc/{pid}/environ").stat().st_uid == ALICE  # root's if the process is not dumpable
    assert Path(f"/proc/{supervisor}/environ").stat().st_uid == 0
    assert service.jobs(ALICE)["of-alice"]["state"] == "running"


@pytest.mark.soak
@needs_x86
def test_a_supervisor_that_becomes_another_program_is_killed_and_stops_nobody(
    service: Service, of_alice: subprocess.Popen[str]
):
    for _ in range(ROUNDS):
        _, pid = service.supervisor_of(ALICE)
        assert service.run(0, sys.executable, TAKE_OVER, str(pid)).stdout == "taken\n"
        for uid in (0, BOB):
            _answered_soon(service, uid)
        until(partial(_is_under_another, service, pid), "another supervisor")
        assert process_table.look_up(pid) is None
        until(lambda: "of-alice" in service.jobs(ALICE), "the job under it")
    assert service.jobs(ALICE)["of-alice"]["cycle"] == 0


@pytest.mark.soak
@pytest.mark.parametrize("attack", ["stopped", "another program"])
def test_the_service_ends_with_all_jobs_although_a_supervisor_does_not(
    service: Service, of_alice: subprocess.Popen[str], attack: str
):
    _, pid = service.supervisor_of(ALICE)
    below = process_table.descendants(pid)
    assert len(below) >= 2, "a spawner and a worker"
    if attack == "stopped":
        os.kill(pid, signal.SIGSTOP)
    elif platform.machine() != "x86_64":
        pytest.skip("take_over.py knows x86-64 alone")
    else:
        assert service.run(0, sys.executable, TAKE_OVER, str(pid)).stdout == "taken\n"
    service.close()
    for entry in (process_table.look_up(pid), *map(process_table.look_up, [each.pid for each in below])):
        assert entry is None or entry.state in "ZX", entry
