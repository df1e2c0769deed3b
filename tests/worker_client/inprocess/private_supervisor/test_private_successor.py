"""When is a private supervisor replaced, and by whom?"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from holdfast_wire.private_supervisor import LIFE_FILE

from tests.e2e.launch import wait_until
from worker_client.endpoint import Endpoint
from worker_client.inprocess.private_supervisor import job_folder, supervisor_lookup
from worker_client.inprocess.private_supervisor.private_successor import PrivateSuccessor

TIMEOUT_S = 30


class Job:
    """One job without ranks, whose supervisor waits for them."""

    def __init__(self, folder: Path) -> None:
        given = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST", "FT_", "SLURM"))}
        self.environment = given | {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29998", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": folder.name,
            "HOLDFAST_STATE_DIR": str(folder / "state"), "XDG_RUNTIME_DIR": str(folder),
        }  # fmt: skip
        self.folder = job_folder.job_folder(self.environment)
        self.started: list[psutil.Process] = []

    def start(self) -> Endpoint:
        found = supervisor_lookup.find_or_start(self.environment)
        self.note()
        return found

    def note(self) -> psutil.Process:
        pid = int((self.folder / LIFE_FILE).read_text())
        self.started.append(psutil.Process(pid))
        return self.started[-1]

    def successor(self) -> PrivateSuccessor:
        return PrivateSuccessor(self.folder, self.environment)

    def kill(self) -> None:
        self.started[-1].kill()
        self.started[-1].wait(TIMEOUT_S)


def wanted() -> bool:
    return True


def found_by(successor: PrivateSuccessor) -> Endpoint:
    """Returns the endpoint. A rank that meets ranks of another supervisor there must ask again."""
    found: list[Endpoint] = []

    def is_found() -> bool:
        told = successor.find(wanted)
        found.extend([] if told is None else [told])
        return told is not None

    wait_until(is_found, timeout_s=TIMEOUT_S, what="another supervisor")
    return found[0]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    for process in made.started:
        if process.is_running():
            process.kill()
    shutil.rmtree(made.folder, ignore_errors=True)


def test_a_dead_one_is_replaced_once_by_whoever_is_first(job: Job):
    first = job.start()
    successors = [job.successor() for _ in range(4)]
    assert {each.find(wanted) for each in successors} == {first}
    job.kill()
    with ThreadPoolExecutor(len(successors)) as pool:
        (second,) = set(pool.map(found_by, successors))
    assert second.job_id == first.job_id
    assert second.token != first.token
    assert second.socket_path != first.socket_path  # nobody who takes it for the first can reach it
    assert {each.find(wanted) for each in successors} == {second}
    assert job.note() != job.started[0]


def test_one_that_is_stopped_or_not_wanted_is_not_replaced(job: Job):
    first = job.start()
    job.started[0].send_signal(signal.SIGSTOP)
    assert job.successor().find(wanted) == first
    Path(first.socket_path).unlink()  # now it does not even answer
    assert job.successor().find(wanted) is None
    job.kill()
    assert job.successor().find(lambda: False) is None
    closed = job.successor()
    closed.close()
    assert closed.find(wanted) is None
    found_by(job.successor())
    job.note()


def test_starts_that_fail_are_further_and_further_apart(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    starts: list[float] = []
    now_s = 100.0

    def fail(folder: Path, environment: object, *, cancel: int) -> Endpoint | None:
        starts.append(now_s)
        raise OSError("no space left on device")

    monkeypatch.setattr(supervisor_lookup, "start_another", fail)
    monkeypatch.setattr("worker_client.inprocess.private_supervisor.private_successor.monotonic", lambda: now_s)
    successor = job.successor()
    for _ in range(4000):
        assert successor.find(wanted) is None
        now_s += 0.1
    assert [round(later - start) for start, later in itertools.pairwise(starts)] == [
        1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60,
    ]  # fmt: skip
    assert "training goes on" in caplog.text


def found_by_or_closed(successor: PrivateSuccessor, told: Path) -> Endpoint | None:
    """Waits until a start was made."""
    while (found := successor.find(wanted)) is None and not told.exists():
        continue
    return found


def test_one_that_is_being_started_ends_with_the_call(job: Job, monkeypatch: pytest.MonkeyPatch):
    slow = job.folder.with_name(f"{job.folder.name}-python")
    slow.write_text('#!/bin/sh\necho $$ > "${0}.pid"\nexec sleep 600\n')
    slow.chmod(0o755)
    told = slow.with_name(f"{slow.name}.pid")
    monkeypatch.setattr("sys.executable", str(slow))
    successor = job.successor()
    try:
        with ThreadPoolExecutor(1) as pool:
            search = pool.submit(found_by_or_closed, successor, told)
            wait_until(
                lambda: told.exists() and told.read_text().endswith("\n"), timeout_s=TIMEOUT_S, what="the slow start"
            )
            sleeper = psutil.Process(int(told.read_text()))
            successor.close()
            assert search.result(TIMEOUT_S) is None
        sleeper.wait(TIMEOUT_S)
    finally:
        successor.close()
        slow.unlink()
        told.unlink(missing_ok=True)
