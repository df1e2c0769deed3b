"""Real spawners from start to end: an ordered one, a killed one, one that can't be started."""

import os
import signal
import sys
from pathlib import Path

import anyio
import pytest
from holdfast_wire import spawner_link as link

from supervisor.config import JobSpec
from supervisor.edges.workers.spawner_keeper import SpawnerKeeper
from supervisor.ports import Spawner

LIMIT_S = 30


class Ear:
    """Hears the spawner; `when` acts at the first message of a kind."""

    def __init__(self) -> None:
        self.spawners: list[Spawner] = []
        self.heard: list[link.FromSpawner] = []
        self.ready = anyio.Event()
        self.spawned = anyio.Event()

    def take(self, message: link.FromSpawner) -> None:
        self.heard.append(message)
        if isinstance(message, link.Ready):
            self.ready.set()
        if isinstance(message, link.Spawned):
            self.spawned.set()


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    script = tmp_path / "wait.py"
    script.write_text("import time; time.sleep(600)\n")
    return JobSpec("kept", (str(script),), cwd=str(tmp_path), python=sys.executable)


async def test_one_that_was_told_to_end_is_no_loss(spec: JobSpec) -> None:
    ear = Ear()
    reasons: list[str] = []

    async def keep() -> None:
        keeper = SpawnerKeeper(private=True, output_dir=None)
        reasons.append(await keeper.keep(spec, os.environ, on_started=ear.spawners.append, on_message=ear.take))

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep)
            await ear.ready.wait()
            ear.spawners[0].send(link.End())
    assert reasons == ["the spawner ended as it was told"]
    assert isinstance(ear.heard[-1], link.Ended)


async def test_one_that_is_killed_is_a_loss_and_takes_its_workers_with_it(spec: JobSpec) -> None:
    ear = Ear()
    reasons: list[str] = []

    async def keep() -> None:
        keeper = SpawnerKeeper(private=True, output_dir=None)
        reasons.append(await keeper.keep(spec, os.environ, on_started=ear.spawners.append, on_message=ear.take))

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep)
            await ear.ready.wait()
            ear.spawners[0].send(link.Spawn(0, (link.WorkerPlan(local_rank=0, rank=0, env={}),)))
            await ear.spawned.wait()
            os.kill(ear.spawners[0].pid, signal.SIGKILL)
    assert "was killed by signal 9" in reasons[0]
    (worker,) = [message.pid for message in ear.heard if isinstance(message, link.Spawned)]
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


async def test_an_interpreter_that_is_not_there_is_said_at_once(spec: JobSpec) -> None:
    keeper = SpawnerKeeper(private=True, output_dir=None)
    missing = JobSpec("kept", spec.command, cwd=spec.cwd, python="/nonexistent/python")
    with anyio.fail_after(LIMIT_S):
        reason = await keeper.keep(missing, os.environ, on_started=lambda _: None, on_message=lambda _: None)
    assert "/nonexistent/python" in reason
