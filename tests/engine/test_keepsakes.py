"""A supervisor is lost after any turn, and another continues with what the spawner kept: is the result the same?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import anyio
import pytest
from holdfast_wire import spawner_link as link

from supervisor.config import JobSpec
from supervisor.core.facts import JobState, RestartRules
from supervisor.core.node import messages as node_messages
from supervisor.engine import keepsakes
from supervisor.engine.job_book import JobRecord
from supervisor.engine.loop import EngineEvent
from supervisor.engine.record_text import UnreadableError
from supervisor.ports import RecordedEvent, Spawner, nobody_asks
from tests.engine.world import FakeSpawners, ObedientSpawner, World

SPEC = JobSpec("j", ("t.py",), local_world_size=2, restart=RestartRules(max_restarts=2))


class KeepingSpawner(ObedientSpawner):
    """Remembers what it keeps, and what it has reported since."""

    def __init__(self) -> None:
        super().__init__(self._report)
        self.texts: dict[str, str] = {}
        self.untaken: list[link.FromSpawner] = []
        self.turns = 0
        self.supervisor: Callable[[link.FromSpawner], None] | None = None
        self.on_turn: Callable[[int], None] = lambda _: None

    def _report(self, message: link.FromSpawner) -> None:
        self.untaken.append(message)
        if self.supervisor is not None:
            self.supervisor(message)

    def keep(self, texts: Mapping[str, str], orders: Sequence[link.Order]) -> None:
        self.texts |= texts
        self.untaken.clear()
        self.turns += 1
        self.on_turn(self.turns)
        for order in orders:
            self.send(order)


class OneSpawner(FakeSpawners):
    """Gives each new supervisor the same spawner."""

    def __init__(self, spawner: KeepingSpawner) -> None:
        super().__init__()
        self.spawner = spawner

    async def keep(
        self,
        spec: JobSpec,
        environment: Mapping[str, str],
        *,
        on_started: Callable[[Spawner], None],
        on_message: Callable[[link.FromSpawner], None],
        on_end_seen: Callable[[int, int], None] = nobody_asks,
    ) -> str:
        untaken = tuple(self.spawner.untaken) or (link.Ready(77, 1, "3.11", "fork", "it is a test", (), ""),)
        untaken = untaken if not self.spawner.turns else tuple(self.spawner.untaken)
        self.spawner.supervisor = on_message
        on_started(self.spawner)
        for message in untaken:
            self.spawner.tell(message)
        await self.spawner.ended.wait()
        return "the spawner ended because it was asked to"


async def play(log_dir: Path, *, lost_after: frozenset[int]) -> tuple[list[RecordedEvent], JobRecord]:
    """Two cycles fail, the third one succeeds. The supervisor is lost at the end of these turns."""
    spawner = KeepingSpawner()
    events: list[RecordedEvent] = []
    failed: set[int] = set()
    while True:
        record, is_lost = await live(log_dir, spawner, events, failed, lost_after)
        if not is_lost:
            return events, record


async def live(
    log_dir: Path, spawner: KeepingSpawner, events: list[RecordedEvent], failed: set[int], lost_after: frozenset[int]
) -> tuple[JobRecord, bool]:
    """Runs one supervisor; returns the job as it leaves it, and whether it was lost."""
    lost: list[int] = []
    async with anyio.create_task_group() as tasks:
        world = World(tasks, log_dir, spawners=OneSpawner(spawner), keeps=True)

        def lose(turn: int) -> None:
            if turn in lost_after:
                lost.append(turn)
                spawner.supervisor = None
                world.engine.post = _unheard

        spawner.on_turn = lose
        if not spawner.turns:
            await world.desk.submit(SPEC, {"A": "secret"})
        else:
            take_back(world, spawner)
        record = world.jobs["j"]
        while not lost and record.ended_at_ns is None:
            await world.settle()
            world.clock.at_s += 20.0
            ranks = {rank for cycle, rank in spawner.living if cycle == record.cycle}
            if not lost and len(ranks) == 2 and record.cycle < 2 and record.cycle not in failed:
                failed.add(record.cycle)
                spawner.exit(record.cycle, 1, code=3)
            elif not lost and len(ranks) == 2 and record.cycle == 2:
                spawner.exit(2, 0, code=0)
                spawner.exit(2, 1, code=0)
            world.engine.post(node_messages.DeadlineReached())
        seen = {event.sequence for event in events}
        events += [event for event in world.journal.events if event.sequence not in seen]
        tasks.cancel_scope.cancel()
        return record, bool(lost)
    raise AssertionError("the tasks were cancelled before")


def _unheard(event: EngineEvent) -> None:
    """Ignores the event: its supervisor is lost."""


def take_back(world: World, spawner: KeepingSpawner) -> None:
    restored = keepsakes.restored(spawner.texts)
    record, kept = restored.record, restored.keepsake
    world.desk.take_back(record)
    world.chronicle.record_again(restored.events)
    world.engine.take_back("j", kept.machines, kept.coordinator)
    world.performer.take_back(record, kept.unfinished, kept.reports)
    for event in kept.waiting:
        world.engine.post(event)
    world.engine.post(node_messages.SupervisorReturned("j"))


async def test_whichever_turn_is_the_last_of_a_supervisor_the_next_one_ends_the_job_the_same_way(
    tmp_path: Path,
) -> None:
    whole, record = await play(tmp_path, lost_after=frozenset())
    assert record.verdict is not None
    assert record.verdict.state is JobState.SUCCEEDED
    told = [(event.sequence, event.kind, event.cycle, event.rank) for event in whole]
    for turn in range(1, 40):
        events, again = await play(tmp_path, lost_after=frozenset({turn}))
        assert again.verdict == record.verdict, turn
        assert [(event.sequence, event.kind, event.cycle, event.rank) for event in events] == told, turn


async def test_a_supervisor_that_is_lost_in_each_turn_gets_on_all_the_same(tmp_path: Path) -> None:
    _, record = await play(tmp_path, lost_after=frozenset(range(1, 400, 2)))
    assert record.verdict is not None
    assert record.verdict.state is JobState.SUCCEEDED
    assert record.shown.restarts_used == 2


async def test_what_was_recorded_by_one_before_the_last_is_not_forgotten(tmp_path: Path) -> None:
    """A supervisor that is killed soon after its return has repeated little of it."""
    async with anyio.create_task_group() as tasks:
        world = World(tasks, tmp_path, keeps=True)
        spawner = await world.submit(SPEC)
        before = RecordedEvent("j", 7, 5, "worker_started", "rank 2 started", node="n1", rank=2)
        world.jobs["j"].recorded_before = [before]
        world.jobs["j"].taken = {("n1", 5): 4}
        world.engine.post(node_messages.SupervisorReturned("j"))
        await world.settle()
        record = keepsakes.restored(spawner.kept).record
        assert (record.recorded_before, record.taken, record.is_returning) == ([before], {("n1", 5): 4}, True)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("missing", ["spec", "state"])
def test_without_a_text_that_counts_nothing_is_restored(missing: str) -> None:
    with pytest.raises(UnreadableError, match=missing):
        keepsakes.restored({"spec": "null", "state": "null", missing: ""})


def test_texts_of_another_kind_are_refused() -> None:
    with pytest.raises(UnreadableError, match="something else"):
        keepsakes.restored({"spec": "null", "state": "null"})
