"""What is sent at the end of a turn? Orders with the kept data, then messages to ranks; else all at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import anyio
import msgspec
import pytest
from holdfast_wire import spawner_link as link

from supervisor.config import JobSpec
from supervisor.config.job_spec import KEPT_NODES_MAX
from supervisor.core.cluster.cluster_messages import DeadlineReached, Reported
from supervisor.core.facts import JobEvent, RendezvousRules
from supervisor.core.node import node_messages
from supervisor.core.wrapped_calls.call_messages import CallRefused
from supervisor.engine.event_publisher import UNTOLD_MAX_S
from supervisor.engine.recovery import snapshot_texts
from supervisor.engine.recovery.snapshot_texts import WHOLE_NODES_MAX
from tests.engine.world import ObedientSpawner, World
from tests.queries.shared_job import SHARED
from tests.queries.test_job_service_meetings import FakeMeetings

LIMIT_S = 10.0


async def test_orders_and_words_leave_once_the_turn_is_over(tmp_path: Path) -> None:
    async with anyio.create_task_group() as tasks:
        world = World(tasks, tmp_path, keeps=True)
        spawner = await world.submit(JobSpec("j", ("t.py",)))
        spawner.heard.clear()
        world.performer.perform(node_messages.KillTree("j", 0))
        world.performer.perform(node_messages.TellRanks("j", 0, (0,), CallRefused(1, "no")))
        assert not spawner.heard
        assert not world.workers.told
        world.performer.settled()
        assert [type(each) for each in spawner.heard] == [link.KillTree]
        assert world.workers.told == [((0,), CallRefused(1, "no"))]
        tasks.cancel_scope.cancel()


async def test_a_request_of_a_rank_is_accepted_once_it_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with anyio.create_task_group() as tasks:
        world = World(tasks, tmp_path, keeps=True)
        spawner = await world.submit(JobSpec("j", ("t.py",)))
        told: list[tuple[object, str]] = []

        def tell(job_id: str, cycle: int, local_ranks: tuple[int, ...], order: object) -> None:
            kept = snapshot_texts.restored(spawner.kept).snapshot.machines
            told.append((order, kept.job.shutdown))

        monkeypatch.setattr(world.workers, "tell_ranks", tell)
        world.inbox.post(node_messages.ControlRequested("j", 0, 0, "shutdown_workload", "enough", 7))
        await world.settle()
        assert told == [(node_messages.Accepted(7), world.engine_state.node_state.jobs["j"].job.shutdown)]
        assert "enough" in told[0][1]
        tasks.cancel_scope.cancel()


def _taking_nothing(spawner: ObedientSpawner, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Lets the spawner's link have no room. Returns what was to be called once the data had left."""
    waiting: list[Callable[[], None]] = []

    def keep(_: Mapping[str, str], __: Sequence[link.Order], on_kept: Callable[[], None]) -> None:
        waiting.append(on_kept)

    monkeypatch.setattr(spawner, "keep", keep)
    return waiting


async def test_a_request_is_not_accepted_as_long_as_the_link_of_the_spawner_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with anyio.create_task_group() as tasks:
        world = World(tasks, tmp_path, keeps=True)
        waiting = _taking_nothing(await world.submit(JobSpec("j", ("t.py",))), monkeypatch)
        world.inbox.post(node_messages.ControlRequested("j", 0, 0, "shutdown_workload", "enough", 7))
        await world.settle()
        early = waiting[-1]
        world.inbox.post(node_messages.ControlRequested("j", 0, 0, "continue", "", 8))
        await world.settle()
        assert world.workers.told == []
        early()
        assert world.workers.told == [((0,), node_messages.Accepted(7))]
        waiting[-1]()
        assert world.workers.told[1:] == [((0,), node_messages.Accepted(8))]
        tasks.cancel_scope.cancel()


async def test_a_request_is_accepted_at_once_if_the_spawner_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with anyio.create_task_group() as tasks:
        world = World(tasks, tmp_path, keeps=True)
        spawner = await world.submit(JobSpec("j", ("t.py",)))
        _taking_nothing(spawner, monkeypatch)
        world.spawners.held_back = True
        world.inbox.post(node_messages.ControlRequested("j", 0, 0, "continue", "", 7))
        await world.settle()
        assert world.workers.told == []
        spawner.kill("it is lost")
        await world.settle()
        assert world.workers.told == [((0,), node_messages.Accepted(7))]
        tasks.cancel_scope.cancel()


async def test_the_leader_gets_an_event_that_no_spawner_keeps_within_some_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with anyio.create_task_group() as tasks:
        world = World(tasks, tmp_path, keeps=True)
        _taking_nothing(await world.submit(SHARED), monkeypatch)
        world.publisher.publish(world.jobs["j"], JobEvent("new", "something is new"))

        async def known_to_the_leader() -> bool:
            world.inbox.post(node_messages.DeadlineReached())
            await world.settle()
            return "new" in [each.kind for each in world.unsent.of("j").events]

        world.clock.at_s += UNTOLD_MAX_S - 0.1
        assert not await known_to_the_leader()
        world.clock.at_s += 0.2
        assert await known_to_the_leader()
        tasks.cancel_scope.cancel()


async def test_what_is_kept_is_the_job_as_it_stands(tmp_path: Path) -> None:
    async with anyio.create_task_group() as tasks:
        world = World(tasks, tmp_path, keeps=True)
        spawner = await world.submit(JobSpec("j", ("t.py",)))
        restored = snapshot_texts.restored(spawner.kept)
        assert restored.snapshot.machines == world.engine_state.node_state.jobs["j"]
        assert restored.snapshot.coordinator == world.engine_state.coordinators["j"]
        assert restored.record.environment == {"A": "secret"}
        assert restored.record.pids == world.jobs["j"].pids
        assert [event.kind for event in restored.events] == world.journal.kinds()
        tasks.cancel_scope.cancel()


async def test_what_is_under_way_is_begun_again_by_the_next_supervisor(tmp_path: Path) -> None:
    async with anyio.create_task_group() as tasks:
        world = World(tasks, tmp_path, keeps=True)
        spawner = await world.submit(JobSpec("j", ("t.py",)))
        collect = node_messages.CollectEvidence("j", 0, 1.0)
        world.performer.perform(collect)
        world.inbox.post(node_messages.DeadlineReached())
        world.performer.perform(node_messages.KillTree("j", 0))
        world.performer.settled()
        assert snapshot_texts.restored(spawner.kept).snapshot.unfinished == (collect,)
        await world.settle()
        world.performer.perform(node_messages.KillTree("j", 0))
        world.performer.settled()
        assert snapshot_texts.restored(spawner.kept).snapshot.unfinished == ()
        tasks.cancel_scope.cancel()


async def test_a_supervisor_that_does_not_come_back_keeps_nothing(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        spawner = await world.submit(JobSpec("j", ("t.py",)))
        assert not spawner.kept


async def test_a_record_that_can_t_be_written_leaves_nothing_that_is_old(tmp_path: Path) -> None:
    async with anyio.create_task_group() as tasks:
        world = World(tasks, tmp_path, keeps=True)
        spawner: ObedientSpawner = await world.submit(JobSpec("j", ("t.py",)))
        machines = world.engine_state.node_state.jobs["j"]
        life = msgspec.structs.replace(machines.job, reason=object())  # pyright: ignore[reportArgumentType]
        world.engine.take_back("j", msgspec.structs.replace(machines, job=life), None)
        world.performer.settled()
        assert spawner.kept["state"] == ""
        tasks.cancel_scope.cancel()


async def test_what_the_nodes_have_told_each_other_is_kept_with_the_turn(tmp_path: Path) -> None:
    async with anyio.create_task_group() as tasks:
        meetings = FakeMeetings()
        world = World(tasks, tmp_path, keeps=True, meetings=meetings)
        spawner = await world.submit(SHARED)
        assert snapshot_texts.restored(spawner.kept).sessions == meetings.session_state("j")
        spawner.kept.clear()
        assert meetings.keep is not None
        assert meetings.keep("j")
        assert snapshot_texts.restored(spawner.kept).sessions == meetings.session_state("j")
        assert meetings.keep("a job that nobody knows")
        tasks.cancel_scope.cancel()


async def test_words_wait_until_the_spawner_of_another_supervisor_is_found(tmp_path: Path) -> None:
    async with anyio.create_task_group() as tasks:
        meetings = FakeMeetings()
        world = World(tasks, tmp_path, keeps=True, meetings=meetings)
        spawner = await world.submit(SHARED)
        world.jobs["j"].spawner, world.jobs["j"].is_returning = None, True
        spawner.kept.clear()
        assert meetings.keep is not None
        assert not meetings.keep("j")
        assert not spawner.kept
        tasks.cancel_scope.cancel()


async def test_of_an_elected_leader_nothing_is_kept_that_the_next_one_learns_otherwise(tmp_path: Path) -> None:
    async with anyio.create_task_group() as tasks:
        world = World(tasks, tmp_path, keeps=True)
        assert SHARED.nodes is not None
        nodes = msgspec.structs.replace(SHARED.nodes, backend="etcd")
        spawner = await world.submit(msgspec.structs.replace(SHARED, nodes=nodes))
        world.inbox.post(Reported("j", DeadlineReached()))
        world.performer.perform(node_messages.KillTree("j", 0))
        world.performer.settled()
        kept = snapshot_texts.restored(spawner.kept).snapshot
        assert (kept.coordinator, kept.waiting) == (None, ())
        assert kept.machines == world.engine_state.node_state.jobs["j"]
        tasks.cancel_scope.cancel()


async def test_what_only_the_coordinator_of_many_knows_is_kept_as_soon_as_anything_leaves(tmp_path: Path) -> None:
    async with anyio.create_task_group() as tasks:
        meetings = FakeMeetings()
        world = World(tasks, tmp_path, keeps=True, meetings=meetings)
        assert SHARED.nodes is not None
        nodes = msgspec.structs.replace(SHARED.nodes, leads=True, max_nodes=WHOLE_NODES_MAX + 1)
        rendezvous = RendezvousRules(max_nodes=WHOLE_NODES_MAX + 1)
        spawner = await world.submit(msgspec.structs.replace(SHARED, nodes=nodes, rendezvous=rendezvous))

        def kept() -> bool:
            coordinator = snapshot_texts.restored(spawner.kept).snapshot.coordinator
            assert coordinator is not None
            known = coordinator.members.get("n0")
            assert known is not None
            return known.cordoned == world.engine_state.coordinators["j"].members["n0"].cordoned

        await world.pass_deadlines(until_s=world.clock.at_s + 60.0)
        assert kept()

        def move(reason: str) -> None:
            members = world.engine_state.coordinators["j"].members
            members.put("n0", msgspec.structs.replace(members["n0"], cordoned=reason))
            world.engine.handle(Reported("j", DeadlineReached()))
            world.performer.settled()
            assert not kept()

        move("words for other nodes leave")
        assert meetings.keep is not None
        assert meetings.keep("j")
        assert kept()
        move("an order for the spawner leaves")
        world.performer.perform(node_messages.KillTree("j", 7))
        world.performer.settled()
        assert kept()
        move("nothing leaves")
        with anyio.fail_after(LIMIT_S):
            while not kept():  # noqa: ASYNC110 - kept data has no event
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()


async def test_of_a_leader_of_too_many_nodes_nothing_is_kept(tmp_path: Path) -> None:
    async with anyio.create_task_group() as tasks:
        world = World(tasks, tmp_path, keeps=True)
        assert SHARED.nodes is not None
        nodes = msgspec.structs.replace(SHARED.nodes, leads=True, max_nodes=KEPT_NODES_MAX + 1)
        spawner = await world.submit(msgspec.structs.replace(SHARED, nodes=nodes))
        assert not spawner.kept
        tasks.cancel_scope.cancel()
