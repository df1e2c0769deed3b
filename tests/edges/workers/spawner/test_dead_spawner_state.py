"""A spawner ended while there was no supervisor: is what it left read, and are its processes ended?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import msgspec
import pytest
from holdfast_wire import spawner_link as wire
from holdfast_wire.private_supervisor import JOB_ID_VARIABLE, SPAWNER_VARIABLE

from supervisor.edges.machine.processes import process_table
from supervisor.edges.workers.spawner import dead_spawner_state
from supervisor.edges.workers.spawner.dead_spawner_state import DeadSpawnerState
from supervisor.edges.workers.spawner.spawner_discovery import SpawnerFiles, SpawnerIdentity
from worker_client.spawner.kept_state_file import WHOLE_BYTES_MAX, KeptFile

JOB = f"leftovers-{os.getpid()}"
EMPTIED = wire.Emptied(0, 0, ())
FILES = SpawnerFiles(Path("/nowhere"), "0123456789ab")


def identity() -> SpawnerIdentity:
    own = process_table.look_up(os.getpid())
    assert own is not None
    namespace = process_table.namespace(os.getpid(), "pid") or 0
    return SpawnerIdentity(JOB, process_table.boot_id(), namespace, 1, own.started_ticks)


def test_it_is_read_and_what_is_torn_is_nothing(tmp_path: Path) -> None:
    place = SpawnerFiles(tmp_path, "n")
    assert dead_spawner_state.read(place) is None
    body = {"texts": {"a": "1"}, "taken": 3, "reports": [wire.encode(EMPTIED).decode()], "cgroup": "/c"}
    place.keep_path.write_text(json.dumps(body))
    assert dead_spawner_state.read(place) == DeadSpawnerState({"a": "1"}, 3, (EMPTIED,), "/c")
    for torn in (json.dumps(body)[:-5], "[]", '{"texts": 1}'):
        place.keep_path.write_text(torn)
        assert dead_spawner_state.read(place) is None


def test_lines_with_changes_count_up_to_one_that_is_cut_off(tmp_path: Path) -> None:
    place = SpawnerFiles(tmp_path, "n")
    file = KeptFile(str(place.keep_path))
    long = "x" * WHOLE_BYTES_MAX
    file.save({"a": "1", "b": long, "environment": "secret"}, {"taken": 0, "reports": [], "cgroup": "/c"})
    for number in range(1, 4):
        texts = {"a": str(number), "environment": "secret"} | ({"b": ""} if number == 3 else {})
        file.note(texts)
        file.save({"all": "of them"}, {"taken": number, "reports": [], "cgroup": "/c"})
    assert dead_spawner_state.read(place) == DeadSpawnerState({"a": "3"}, 3, (), "/c")
    written = place.keep_path.read_bytes()
    assert b"secret" not in written
    place.keep_path.write_bytes(written[:-5])
    assert dead_spawner_state.read(place) == DeadSpawnerState({"a": "2", "b": long}, 2, (), "/c")


@pytest.fixture
def sleeping() -> Generator[Callable[..., int]]:
    """Yields a function that starts a process of a job in a separate session and returns its pid.

    Without a job, it shows no environment, like one that has overwritten it with a title.
    """
    started: list[subprocess.Popen[bytes]] = []

    def start(job_id: str, spawner: str = "") -> int:
        command = [sys.executable, "-c", "import time; time.sleep(60)"]
        environment = dict(os.environ) | {JOB_ID_VARIABLE: job_id} if job_id else {}
        environment |= {SPAWNER_VARIABLE: spawner} if spawner else {}
        started.append(subprocess.Popen(command, env=environment, start_new_session=True))
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.wait()


def of_another_user() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["/bin/sleep", "60"], env={JOB_ID_VARIABLE: JOB}, user=54321, start_new_session=True)


def is_alive(pid: int) -> bool:
    found = process_table.look_up(pid)
    return found is not None and found.state not in "ZX"


async def test_what_the_job_has_left_is_ended_and_nothing_else(sleeping: Callable[[str], int]) -> None:
    marked, worker, other = sleeping(JOB), sleeping(""), sleeping("another")
    texts = {"workers": json.dumps([[0, 0, worker]])}
    assert await dead_spawner_state.end(FILES, identity(), DeadSpawnerState(texts, 0, (), "")) == ()
    assert [is_alive(pid) for pid in (marked, worker, other)] == [False, False, True]


async def test_pids_that_other_processes_have_by_now_mean_nothing(sleeping: Callable[[str], int]) -> None:
    marked, of_spawner, of_worker = sleeping(JOB), sleeping("another"), sleeping("another")
    reused = msgspec.structs.replace(identity(), pid=of_spawner)
    texts = {"workers": json.dumps([[0, 0, of_worker]])}
    assert await dead_spawner_state.end(FILES, reused, DeadSpawnerState(texts, 0, (), "")) == ()
    assert [is_alive(pid) for pid in (marked, of_spawner, of_worker)] == [False, True, True]


async def test_what_another_spawner_has_started_is_left_alone(sleeping: Callable[..., int]) -> None:
    """A further node of the job on this machine, a later run of its id, or a job of that id in another container."""
    ours, neighbour, worker = sleeping(JOB, FILES.name), sleeping(JOB, "another"), sleeping(JOB, "another")
    texts = {"workers": json.dumps([[0, 0, worker]])}  # its pid is the neighbour's by now
    assert await dead_spawner_state.end(FILES, identity(), DeadSpawnerState(texts, 0, (), "")) == ()
    assert [is_alive(pid) for pid in (ours, neighbour, worker)] == [False, True, True]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")
async def test_another_users_job_of_the_same_id_is_left_alone() -> None:
    with of_another_user() as theirs:
        assert await dead_spawner_state.end(FILES, identity(), DeadSpawnerState({}, 0, (), "")) == ()
        is_left = is_alive(theirs.pid)
        theirs.kill()
    assert is_left


async def test_pids_of_another_namespace_mean_nothing(sleeping: Callable[[str], int]) -> None:
    marked, other = sleeping(JOB), sleeping("")
    elsewhere = msgspec.structs.replace(identity(), pid=other, pid_namespace=1)
    texts = {"workers": json.dumps([[0, 0, other]])}
    assert await dead_spawner_state.end(FILES, elsewhere, DeadSpawnerState(texts, 0, (), "")) == ()
    assert [is_alive(pid) for pid in (marked, other)] == [False, True]


async def test_pids_of_another_boot_mean_nothing(sleeping: Callable[[str], int]) -> None:
    alive = sleeping(JOB)
    assert await dead_spawner_state.end(FILES, msgspec.structs.replace(identity(), boot="another"), None) == ()
    assert is_alive(alive)
