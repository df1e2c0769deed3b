"""Each port fails in turn while one job's actions are performed: that job gets the reason, another one continues."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from holdfast_wire import spawner_link as link

from supervisor.config import JobSpec
from supervisor.core import orders
from supervisor.core.facts import JobState, RestartRules, Verdict
from supervisor.core.gpu_affinity import GpuPlace
from supervisor.core.node import node_messages
from supervisor.edges.peers.embedded.local_peers import LocalPeers
from supervisor.engine.recovery import snapshot_texts
from supervisor.engine.worker_plan import WorkerPlanner
from supervisor.errors import NotNowError
from tests.engine.world import ObedientSpawner, World

ERRORS = [
    OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/somewhere/full"),
    OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
    NotNowError("cannot do it: somebody else does; wait for the end"),
    AssertionError("no such thing"),
]
WORDS = {0: "No space left on device", 1: "Too many open files", 2: "cannot do it", 3: "AssertionError: no such thing"}
FATAL = [
    "spawners.keep", "spawner.send", "tokens.issue", "workers.open_cycle", "workers.expect", "planner.plan",
    "peers.report", "peers.send",
]  # fmt: skip
HARMLESS = [
    "journal.record", "journal.save", "files.read_iteration", "workers.close_cycle", "tokens.withdraw",
    "claims.release", "stacks.collect", "workers.read_progress",
]  # fmt: skip


def job_spec(job_id: str, *, max_restarts: int = 0) -> JobSpec:
    return JobSpec(
        job_id,
        ("t.py",),
        local_world_size=2,
        restart=RestartRules(max_restarts=max_restarts),
        checkpoint_iteration_file=f"/ckpt/{job_id}",
    )


def break_for_hit(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, error: Exception) -> None:
    """Makes calls for the job "hit" raise; all others work."""
    works: Callable[..., object] = getattr(owner, name)

    def call(*args: object, **kwargs: object) -> object:
        if "hit" in repr((args, kwargs)):
            raise error
        return works(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)


def break_port(monkeypatch: pytest.MonkeyPatch, world: World, port: str, error: Exception) -> None:
    owner, _, name = port.partition(".")
    match owner:
        case "planner":
            break_for_hit(monkeypatch, WorkerPlanner, name, error)
        case "peers":
            break_for_hit(monkeypatch, LocalPeers, name, error)
        case "spawner":
            works = ObedientSpawner.send

            def send(spawner: ObedientSpawner, message: link.Order) -> None:
                if spawner is not world.spawners.started[0]:
                    raise error
                works(spawner, message)

            monkeypatch.setattr(ObedientSpawner, name, send)
        case "stacks":

            async def collect(*_: object, **__: object) -> None:
                raise error

            monkeypatch.setattr(world.stacks, name, collect)
        case _:
            break_for_hit(monkeypatch, getattr(world, owner), name, error)


@asynccontextmanager
async def beside_another(tmp_path: Path) -> AsyncGenerator[World]:
    """The other job runs before and after, and succeeds in its first cycle."""
    async with World.opened(tmp_path) as world:
        spawner = await world.submit(job_spec("beside"))
        yield world
        await world.settle()
        report = world.job_service.job("beside")
        assert report is not None
        assert (report.state, report.cycle, report.restarts_used) == (JobState.RUNNING, 0, 0)
        for local_rank in range(2):
            spawner.exit(0, local_rank, code=0)
        beside = await world.job_service.wait("beside")
        assert beside.verdict is not None
        assert beside.verdict.state is JobState.SUCCEEDED


async def verdict_of(world: World, job_id: str) -> Verdict:
    await world.pass_deadlines(until_s=world.clock.at_s + 1000.0)
    verdict = world.jobs[job_id].verdict
    assert verdict is not None, world.job_service.job(job_id)
    assert world.jobs[job_id].ended_at_ns is not None
    await world.job_service.wait(job_id)
    return verdict


@pytest.mark.parametrize("error_number", WORDS)
@pytest.mark.parametrize("port", FATAL)
async def test_a_port_that_fails_ends_its_job_with_the_reason(
    port: str, error_number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with beside_another(tmp_path) as world:
        break_port(monkeypatch, world, port, ERRORS[error_number])
        await world.submit(job_spec("hit"))
        verdict = await verdict_of(world, "hit")
        assert (verdict.state, verdict.exit_code) == (JobState.FAILED, 1)
        assert WORDS[error_number] in verdict.reason
        assert "hit" not in world.claims.held


@pytest.mark.parametrize("error_number", WORDS)
@pytest.mark.parametrize("port", HARMLESS)
async def test_a_port_that_the_training_does_not_need_takes_nothing_from_the_job(
    port: str, error_number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with beside_another(tmp_path) as world:
        break_port(monkeypatch, world, port, ERRORS[error_number])
        spawner = await world.submit(job_spec("hit"))
        world.inbox.post(node_messages.Ordered("hit", orders.TakeStacks(0, (0,), 0.25)))
        await world.settle()
        spawner.exit(0, 0, code=0)
        spawner.exit(0, 1, code=0)
        verdict = await verdict_of(world, "hit")
        assert verdict.state is JobState.SUCCEEDED


async def test_stacks_that_cannot_be_taken_are_said_and_waited_for_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with beside_another(tmp_path) as world:
        break_port(monkeypatch, world, "stacks.collect", ERRORS[1])
        await world.submit(job_spec("hit"))
        world.inbox.post(node_messages.Ordered("hit", orders.TakeStacks(0, (0,), 0.25)))
        await world.settle()
        (said,) = [event.reason for event in world.journal.events if event.kind == "stacks_collected"]
        assert "cannot take stacks: Too many open files" in said
        world.job_service.stop("hit", reason="enough", signal=0)
        assert (await verdict_of(world, "hit")).state is JobState.STOPPED


async def test_a_spawner_is_killed_though_nobody_can_say_what_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with beside_another(tmp_path) as world:
        spawner = await world.submit(job_spec("hit"))
        break_for_hit(monkeypatch, spawner, "process_state", ERRORS[1])

        def no_proc() -> str:
            raise ERRORS[1]

        monkeypatch.setattr(spawner, "process_state", no_proc)
        spawner.silent |= {link.Signal, link.KillTree, link.End}
        world.job_service.stop("hit", reason="enough", signal=0)
        assert (await verdict_of(world, "hit")).state is JobState.STOPPED
        assert spawner.ended.is_set()


async def test_a_spawner_that_comes_after_it_was_given_up_is_killed_at_once(tmp_path: Path) -> None:
    async with beside_another(tmp_path) as world:
        world.spawners.held_back = True
        await world.job_service.submit(job_spec("hit"), {})
        await world.settle()
        world.job_service.stop("hit", reason="enough", signal=0)
        assert (await verdict_of(world, "hit")).state is JobState.STOPPED
        world.spawners.let_go.set()
        await world.settle()
        late = world.spawners.started[-1]
        assert late is not world.spawners.started[0]
        assert late.ended.is_set()


async def test_a_spawner_that_comes_after_the_fence_was_moved_gets_it_at_once(tmp_path: Path) -> None:
    """Seed 32002031 of the simulator: its supervisor stood still before the fence was moved the next time."""
    async with beside_another(tmp_path) as world:
        world.spawners.held_back = True
        await world.job_service.submit(job_spec("fenced"), {})
        await world.settle()
        world.inbox.post(node_messages.FenceMoved("fenced", 12.5))
        await world.settle()
        world.spawners.let_go.set()
        await world.settle()
        heard = [each.until_ns for each in world.spawners.started[-1].heard if isinstance(each, link.Fence)]
        assert heard == [12_500_000_000]


async def test_a_job_that_is_taken_back_does_not_wait_for_the_places_of_its_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU driver does not answer. Meanwhile the spawner would get neither the fence nor a stop."""
    async with anyio.create_task_group() as tasks:
        before = await World(tasks, tmp_path, keeps=True).submit(JobSpec("j", ("t.py",), numa_binding="node"))
        restored = snapshot_texts.restored(before.kept)
        record, kept = restored.record, restored.snapshot
        world = World(tasks, tmp_path, keeps=True)

        async def never(_: JobSpec) -> None:
            await anyio.sleep_forever()

        monkeypatch.setattr(world.gpus, "places", never)
        world.job_service.take_back(record)
        world.engine.take_back("j", kept.machines, kept.coordinator)
        world.performer.take_back(record, kept.unfinished, kept.reports)
        await world.settle()
        world.job_service.stop("j", reason="enough", signal=0)
        await world.settle()
        assert link.Signal in [type(each) for spawner in world.spawners.started for each in spawner.heard]
        tasks.cancel_scope.cancel()


async def test_the_places_that_a_returning_supervisor_finds_bind_the_workers_of_the_next_cycle(tmp_path: Path) -> None:
    async with anyio.create_task_group() as tasks:
        spec = JobSpec("j", ("t.py",), numa_binding="node", restart=RestartRules(max_restarts=1))
        before = await World(tasks, tmp_path, keeps=True).submit(spec)
        restored = snapshot_texts.restored(before.kept)
        world = World(tasks, tmp_path, keeps=True)
        world.gpus.found = (GpuPlace("GPU 0", 0, (4, 5)),), ""
        world.job_service.take_back(restored.record)
        world.engine.take_back("j", restored.snapshot.machines, restored.snapshot.coordinator)
        world.performer.take_back(restored.record, restored.snapshot.unfinished, restored.snapshot.reports)
        await world.settle()
        (spawner,) = world.spawners.started
        spawner.exit(0, 0, code=1)
        await world.pass_deadlines(until_s=world.clock.at_s + 100.0)
        (plan,) = [each for order in spawner.heard if isinstance(order, link.Spawn) for each in order.workers]
        assert plan.cpus == (4, 5)
        (told,) = [each.reason for each in world.journal.events if each.kind == "workers_bound"]
        assert told.startswith("when they are started again: local rank 0 is bound")
        tasks.cancel_scope.cancel()


async def test_places_that_are_found_after_the_end_of_a_returning_job_are_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with anyio.create_task_group() as tasks:
        before = await World(tasks, tmp_path, keeps=True).submit(JobSpec("j", ("t.py",), numa_binding="node"))
        restored = snapshot_texts.restored(before.kept)
        world = World(tasks, tmp_path, keeps=True)
        answers = anyio.Event()

        async def late(_: JobSpec) -> tuple[tuple[GpuPlace, ...], str]:
            await answers.wait()
            return (GpuPlace("GPU 0", 0, (4, 5)),), ""

        monkeypatch.setattr(world.gpus, "places", late)
        world.job_service.take_back(restored.record)
        world.engine.take_back("j", restored.snapshot.machines, restored.snapshot.coordinator)
        world.performer.take_back(restored.record, restored.snapshot.unfinished, restored.snapshot.reports)
        await world.settle()
        world.spawners.started[0].exit(0, 0, code=0)
        assert (await verdict_of(world, "j")).state is JobState.SUCCEEDED
        answers.set()
        await world.settle()
        assert restored.record.gpu_places == ()
        assert "workers_bound" not in world.journal.kinds()
        tasks.cancel_scope.cancel()


async def test_a_spawner_that_could_not_be_killed_in_time_does_not_disturb_the_next_one(tmp_path: Path) -> None:
    async with beside_another(tmp_path) as world:
        first = await world.submit(job_spec("hit", max_restarts=1))
        first.unkillable = True
        first.silent |= {link.Signal, link.KillTree}
        first.exit(0, 0, code=1)
        await world.pass_deadlines(until_s=world.clock.at_s + 100.0)
        second = world.spawners.started[-1]
        assert second is not first
        first.tell(link.StoreReady(1, "h", 666))
        first.ended.set()
        await world.settle()
        report = world.job_service.job("hit")
        assert report is not None
        assert (report.state, report.cycle, report.restarts_used) == (JobState.RUNNING, 1, 1)
        assert world.jobs["hit"].spawner is second
        for local_rank in range(2):
            second.exit(1, local_rank, code=0)
        assert (await verdict_of(world, "hit")).state is JobState.SUCCEEDED


async def test_what_a_spawner_says_that_comes_late_never_reaches_the_next_run_of_its_id(tmp_path: Path) -> None:
    async with beside_another(tmp_path) as world:
        world.spawners.held_back = True
        await world.job_service.submit(job_spec("hit"), {})
        await world.settle()
        world.job_service.stop("hit", reason="enough", signal=0)
        assert (await verdict_of(world, "hit")).state is JobState.STOPPED
        world.spawners.held_back = False
        second = await world.submit(job_spec("hit"))
        world.spawners.let_go.set()
        await world.settle()
        late = world.spawners.started[-1]
        assert late is not second
        late.unkillable = True
        late.exit(0, 0, code=1)
        late.tell(link.Emptied(0, 2, ()))
        late.ended.set()
        await world.settle()
        report = world.job_service.job("hit")
        assert report is not None
        assert (report.state, world.jobs["hit"].spawner) == (JobState.RUNNING, second)
        for local_rank in range(2):
            second.exit(0, local_rank, code=0)
        assert (await verdict_of(world, "hit")).state is JobState.SUCCEEDED


async def test_an_order_to_ranks_that_are_replaced_names_the_newest_processes(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        spawner = await world.submit(job_spec("j"))
        actions = (node_messages.RespawnWorkers("j", 0, (1,)), node_messages.RespawnWorkers("j", 0, (1,)))
        for action in actions:
            assert world.performer.perform(action) == ()
        plans = [message.workers for message in spawner.heard if isinstance(message, link.Spawn)]
        assert [len(each) for each in plans] == [2, 1, 1]
        assert [each[0].env["TORCHELASTIC_ERROR_FILE"].rpartition("/")[2] for each in plans] == [
            "error.json", "error-respawn1.json", "error-respawn2.json",
        ]  # fmt: skip
        assert world.performer.perform(node_messages.KillTree("nobody", 0)) == ()


async def test_reports_of_an_ended_run_that_waited_for_a_file_do_not_reach_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with World.opened(tmp_path) as world:
        answered = anyio.Event()

        async def read_slowly(_: str) -> None:
            await answered.wait()

        monkeypatch.setattr(world.files, "read_iteration", read_slowly)
        spec = JobSpec("j", ("t.py",), checkpoint_iteration_file="/ckpt/iteration")
        await world.submit(spec)
        world.inbox.post(node_messages.JobAbandoned("j", "Holdfast hit a defect of its own"))
        await world.settle()
        await world.submit(JobSpec("j", ("t.py",)))
        answered.set()
        await world.settle()
        report = world.job_service.job("j")
        assert report is not None
        assert report.state is JobState.RUNNING


async def test_ranks_whose_node_may_be_replaced_have_a_lease_that_moves_with_its_fence(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        spawner = await world.submit(job_spec("fenced", max_restarts=1))
        assert world.workers.fenced["fenced", 0] is False
        world.inbox.post(node_messages.FenceMoved("fenced", 12.5))
        await world.settle()
        assert world.workers.leases == {"fenced": 12.5}
        spawner.exit(0, 0, code=1)
        await world.pass_deadlines(until_s=world.clock.at_s + 100.0)
        assert world.workers.fenced["fenced", 1] is True
