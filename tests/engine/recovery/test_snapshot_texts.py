"""A supervisor is lost after any turn, and another continues with what the spawner kept: is the result the same?"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from pathlib import Path

import anyio
import msgspec
import pytest
from holdfast_wire import spawner_link as link

from supervisor.config import JobSpec
from supervisor.core.facts import JobState, RestartRules
from supervisor.core.node import node_messages
from supervisor.engine.engine_loop import EngineEvent
from supervisor.engine.job_record import JobRecord
from supervisor.engine.recovery import record_text, snapshot_texts
from supervisor.engine.recovery.record_text import UnreadableError
from supervisor.engine.recovery.state_snapshot import PartedStateSnapshot
from supervisor.ports.edges import Spawner, nobody_asks
from supervisor.ports.reports import RecordedEvent
from tests.engine.world import FakeSpawners, ObedientSpawner, World

SPEC = JobSpec("j", ("t.py",), local_world_size=2, restart=RestartRules(max_restarts=2))


class Moment(Enum):
    """Of a turn: when its supervisor is lost."""

    DECIDED = auto()  # before anything of it has left the process
    KEPT = auto()  # and its orders are on their way, before anybody was told of its events
    TOLD = auto()


class KeepingSpawner(ObedientSpawner):
    """Remembers what it keeps, and what it has reported since."""

    def __init__(self) -> None:
        super().__init__(self._report)
        self.texts: dict[str, str] = {}
        self.untaken: list[link.FromSpawner] = []
        self.turns = 0
        self.supervisor: Callable[[link.FromSpawner], None] | None = None
        self.lose_at: Callable[[int, Moment], bool] = lambda _, __: False

    def _report(self, message: link.FromSpawner) -> None:
        self.untaken.append(message)
        if self.supervisor is not None:
            self.supervisor(message)

    def keep(self, texts: Mapping[str, str], orders: Sequence[link.Order], on_kept: Callable[[], None]) -> None:
        if self.supervisor is None or self.lose_at(self.turns + 1, Moment.DECIDED):
            return
        self.texts |= texts
        self.untaken.clear()
        self.turns += 1
        is_lost = self.lose_at(self.turns, Moment.KEPT)
        for order in orders:
            self.send(order)
        if not is_lost:
            on_kept()
            self.lose_at(self.turns, Moment.TOLD)


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


class Disk:
    """What people can read, which outlives each supervisor."""

    def __init__(self) -> None:
        self.events: dict[int, RecordedEvent] = {}

    def take(self, told: Sequence[RecordedEvent]) -> None:
        """No number stands for two events: who has read one of them would never read the other."""
        for event in told:
            assert self.events.setdefault(event.sequence, event) == event

    def after(self, sequence: int) -> list[RecordedEvent]:
        return [self.events[number] for number in sorted(self.events) if number > sequence]


async def play(
    log_dir: Path, *, lost_at: frozenset[int] = frozenset(), moment: Moment = Moment.TOLD
) -> tuple[list[RecordedEvent], JobRecord]:
    """Two cycles fail, the third one succeeds. The supervisor is lost at that moment of these turns."""
    spawner = KeepingSpawner()
    disk = Disk()
    failed: set[int] = set()
    still = set(lost_at)

    def is_due(turn: int, at: Moment) -> bool:
        if at is not moment or turn not in still:
            return False
        still.remove(turn)  # The next supervisor comes to the turn of that number again.
        return True

    while True:
        record, is_lost = await live(log_dir, spawner, disk, failed, is_due)
        if not is_lost:
            return disk.after(0), record


async def live(
    log_dir: Path, spawner: KeepingSpawner, disk: Disk, failed: set[int], is_due: Callable[[int, Moment], bool]
) -> tuple[JobRecord, bool]:
    """Runs one supervisor; returns the job as it leaves it, and whether it was lost."""
    lost: list[int] = []
    async with anyio.create_task_group() as tasks:
        world = World(tasks, log_dir, spawners=OneSpawner(spawner), keeps=True)

        def lose_at(turn: int, moment: Moment) -> bool:
            if not lost and is_due(turn, moment):
                lost.append(turn)
                disk.take(world.journal.events)
                spawner.supervisor = None
                world.inbox.post = _unheard
                world.journal.record = _unwritten
            return bool(lost)

        spawner.lose_at = lose_at
        if not spawner.turns:
            await world.job_service.submit(SPEC, {"A": "secret"})
        else:
            take_back(world, spawner, disk)
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
            world.inbox.post(node_messages.DeadlineReached())
        disk.take(world.journal.events)
        tasks.cancel_scope.cancel()
        return record, bool(lost)
    raise AssertionError("the tasks were cancelled before")


def _unheard(event: EngineEvent) -> None:
    """Ignores the event: its supervisor is lost."""


def _unwritten(event: RecordedEvent) -> None:
    """The same of an event."""


def take_back(world: World, spawner: KeepingSpawner, disk: Disk) -> None:
    restored = snapshot_texts.restored(spawner.texts)
    record, kept = restored.record, restored.snapshot
    past = disk.after(kept.sequence)
    record.sequence = max([record.sequence, *(event.sequence for event in past)])
    record.recorded_before += past
    world.job_service.take_back(record)
    world.publisher.record_again(restored.events)
    world.engine.take_back("j", kept.machines, kept.coordinator)
    world.performer.take_back(record, kept.unfinished, kept.reports)
    for event in kept.waiting:
        world.inbox.post(event)
    world.inbox.post(node_messages.SupervisorReturned("j"))


@pytest.mark.parametrize("moment", Moment)
async def test_whichever_turn_is_the_last_of_a_supervisor_the_next_one_ends_the_job_the_same_way(
    tmp_path: Path, moment: Moment
) -> None:
    whole, record = await play(tmp_path)
    assert record.verdict is not None
    assert record.verdict.state is JobState.SUCCEEDED
    told = [(event.sequence, event.kind, event.cycle, event.rank) for event in whole]
    for turn in range(2, 40):  # The first one is kept as soon as there is a spawner.
        events, again = await play(tmp_path, lost_at=frozenset({turn}), moment=moment)
        assert again.verdict == record.verdict, turn
        assert [(event.sequence, event.kind, event.cycle, event.rank) for event in events] == told, turn


@pytest.mark.parametrize("moment", Moment)
async def test_a_supervisor_that_is_lost_in_each_turn_gets_on_all_the_same(tmp_path: Path, moment: Moment) -> None:
    _, record = await play(tmp_path, lost_at=frozenset(range(3, 100, 2)), moment=moment)
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
        world.inbox.post(node_messages.SupervisorReturned("j"))
        await world.settle()
        record = snapshot_texts.restored(spawner.kept).record
        assert (record.recorded_before, record.taken, record.is_returning) == ([before], {("n1", 5): 4}, True)
        tasks.cancel_scope.cancel()


async def test_a_job_of_a_version_without_fencing_epochs_has_one_from_its_next_cycle_on(tmp_path: Path) -> None:
    spawner, disk, failed = KeepingSpawner(), Disk(), set[int]()
    _, is_lost = await live(tmp_path, spawner, disk, failed, lambda _, __: bool(spawner.living))
    newer = ("epoch", "own_epoch", "submitted_at_ms")
    kept = json.loads(
        spawner.texts["state"], object_hook=lambda has: {name: has[name] for name in has if name not in newer}
    )
    spawner.texts["state"] = json.dumps(kept)
    restored = snapshot_texts.restored(spawner.texts)
    begun_at_ms = restored.record.submitted_at_ms
    led = restored.snapshot.coordinator
    assert is_lost
    assert led is not None
    assert (led.epoch, led.own_epoch) == (0, begun_at_ms)
    assert restored.snapshot.machines.job.rules.facts.submitted_at_ms == begun_at_ms  # a later leader reads it there
    before = len(spawner.heard)
    await live(tmp_path, spawner, disk, failed, lambda _, __: False)
    spawned = (each for each in spawner.heard[before:] if isinstance(each, link.Spawn) and each.cycle > 0)
    epochs = [worker.env["HOLDFAST_FENCING_EPOCH"] for each in spawned for worker in each.workers]
    assert epochs
    assert set(epochs) == {str(begun_at_ms)}


@pytest.mark.parametrize("missing", ["spec", "state"])
def test_without_a_text_that_counts_nothing_is_restored(missing: str) -> None:
    with pytest.raises(UnreadableError, match=missing):
        snapshot_texts.restored({"spec": "null", "state": "null", missing: ""})


async def test_the_number_of_the_spawner_is_read_from_a_state_in_parts_too(tmp_path: Path) -> None:
    async with anyio.create_task_group() as tasks:
        spawner = await World(tasks, tmp_path, keeps=True).submit(SPEC)
        kept = msgspec.structs.replace(snapshot_texts.restored(spawner.kept).snapshot, spawner_number=7)
        states = [record_text.write(each) for each in (kept, PartedStateSnapshot(kept, 20), None)]
        assert [snapshot_texts.spawner_number({"state": each}) for each in (*states, "", "{")] == [7, 7, -1, -1, -1]
        tasks.cancel_scope.cancel()


def test_texts_of_another_kind_are_refused() -> None:
    with pytest.raises(UnreadableError, match="something else"):
        snapshot_texts.restored({"spec": "null", "state": "null"})
