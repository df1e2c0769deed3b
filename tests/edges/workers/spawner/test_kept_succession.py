"""What do a job's spawners keep, and in which order, when one replaces another, so that no supervisor misses one?"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import cast
from unittest.mock import Mock

import anyio
import msgspec
import pytest
from holdfast_wire import spawner_link as link

from supervisor.edges.workers.spawner import kept_succession
from supervisor.edges.workers.spawner.kept_succession import SUCCESSION, SUCCESSOR, Succession, succession
from supervisor.edges.workers.spawner.spawner_link import SpawnerLink
from supervisor.edges.workers.spawner.spawner_succession import Hearing, SpawnerSuccession
from supervisor.errors import HoldfastError
from tests.edges.workers.spawner.test_spawner_succession import LIMIT_S, SetLink
from tests.settling import settled

READY = link.Ready(0, 1, "3", "fork", "", ("torch",), "")
LEARNED = link.Learned(("torch",), (), "every worker imports torch")
MORE = link.Learned(("A=1", "torch", "transformers"), (), "every worker imports transformers")
SPAWN = link.Spawn(1, (link.WorkerPlan(0, 0, {}),))


class KeptJob:
    """A job whose supervisor keeps its state in spawners 10, 11, …, and what each of them got, in order."""

    def __init__(self) -> None:
        self.links: dict[int, KeepingLink] = {}
        self.sent: list[tuple[int, Succession | None, tuple[link.Order, ...]]] = []  # pid, which spawners it keeps
        self.lessons: list[link.Learned | None] = []
        self.is_full = False  # the node: no process can be started
        self.replaced: list[tuple[int, str]] = []  # pid, the one that it keeps as its successor
        self.heard: list[link.FromSpawner] = []
        self.confirmed: list[int] = []  # pids of those that need not repeat what they have reported
        self.succession = SpawnerSuccession(self.start, self.heard.append, lambda _: None)

    async def start(self, learned: link.Learned | None, hearing: Hearing) -> SpawnerLink:
        self.lessons.append(learned)
        if self.is_full:
            raise HoldfastError("the node is full")
        return self.link_to(10 + len(self.links), hearing)

    def link_to(self, pid: int, hearing: Hearing) -> SpawnerLink:
        self.links[pid] = KeepingLink(pid, hearing, self)
        return cast("SpawnerLink", self.links[pid])

    def take_back(
        self, *texts: Mapping[str, str], learned: link.Learned | None = None, ready: link.Ready = READY
    ) -> None:
        """Finds one spawner with each of these texts; the first one has learned that. All are ready like that."""
        found = [
            Mock(pid=10 + number, texts=each, welcome=Mock(ready=ready, learned=None if number else learned))
            for number, each in enumerate(texts)
        ]
        self.succession.take_back(found, lambda each, hearing: self.link_to(each.pid, hearing))

    def keep(self, *orders: link.Order) -> None:
        self.succession.keep({"state": "s"}, orders, lambda: None)

    def has_left(self, pid: int) -> None:
        """What that spawner keeps is in the kernel."""
        self.links[pid].on_kept()

    async def have_successor(self) -> None:
        """The first spawner teaches, and the second is ready."""
        self.links[10].hearing.on_message(LEARNED)
        await settled()
        self.links[11].hearing.on_message(READY)

    def empties(self, pid: int, cycle: int) -> None:
        self.links[pid].hearing.on_message(link.Emptied(cycle, 0, ()))

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        async def run() -> None:
            await self.succession.run(lambda _: None)

        with anyio.fail_after(LIMIT_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                await settled()
                yield
                self.succession.kill("the test is over")


class KeepingLink(SetLink):
    def __init__(self, pid: int, hearing: Hearing, job: KeptJob) -> None:
        super().__init__(pid, hearing)
        self.files = None
        self.job = job
        self.on_kept: Callable[[], None] = lambda: None

    def send(self, message: link.ToSpawner) -> None:
        super().send(message)
        self.job.sent.append((self.pid, None, (cast("link.Order", message),)))

    def keep(
        self, texts: Mapping[str, str], orders: tuple[link.Order, ...], on_kept: Callable[[], None], *, are_all: bool
    ) -> None:
        del are_all
        self.on_kept = on_kept
        self.keep_between(texts, orders)

    def confirmation(self) -> Callable[[], None]:
        return lambda: self.job.confirmed.append(self.pid)

    def keep_between(self, texts: Mapping[str, str], orders: tuple[link.Order, ...]) -> None:
        if SUCCESSOR in texts:
            self.job.replaced.append((self.pid, texts[SUCCESSOR]))
        self.job.sent.append((self.pid, succession(texts), orders))


def texts(current: int, owners: dict[int, int], turns: int) -> dict[str, str]:
    stood = Succession(current, owners, max(owners), is_bare=False, is_ending=False, held=(), turns=turns)
    return {SUCCESSION: msgspec.json.encode(stood).decode()}


def test_a_job_is_whole_if_all_spawners_are_there_that_it_relies_on() -> None:
    with pytest.raises(kept_succession.IncompleteError):
        kept_succession.check_whole([])
    assert kept_succession.turns({}) == -1
    found = [Mock(pid=pid, texts=texts(1, {3: 2}, 4), welcome=Mock(ready=READY)) for pid in (1, 2)]
    assert kept_succession.turns(found[0].texts) == 4
    kept_succession.check_whole(found)
    with pytest.raises(kept_succession.IncompleteError, match="pid 2"):
        kept_succession.check_whole(found[:1])
    found[1].welcome.ready = READY._replace(protocol=link.PROTOCOL + 1)
    with pytest.raises(kept_succession.IncompleteError, match=r"pid 2\) can't be taken over: it speaks version 2 of"):
        kept_succession.check_whole(found)


@pytest.mark.parametrize("is_emptied_first", [False, True])
async def test_a_replaced_one_ends_only_once_the_next_one_keeps_that_it_is_not_needed(is_emptied_first: bool) -> None:
    """Else a supervisor that is lost in between has lost a spawner that the others' texts still need."""
    job = KeptJob()
    async with job.running():
        job.keep(link.PrepareStore(0, "h"), SPAWN._replace(cycle=0))
        await job.have_successor()
        if is_emptied_first:
            job.empties(10, 0)
            job.keep()
        job.sent.clear()
        job.keep(link.PrepareStore(1, "h"))
        assert job.replaced == [(10, "11")]
        assert [pid for pid, _, _ in job.sent][:2] == [10, 11], "it keeps which one that is before that has an order"
        if not is_emptied_first:
            job.has_left(11)
            job.empties(10, 0)
            assert [pid for pid, _, _ in job.sent][2:] == [10]
            job.keep()
        (pid, stood, _) = job.sent[-1]
        assert stood is not None
        assert (pid, stood.current, stood.owners) == (11, 11, {1: 11})
        job.sent.clear()
        job.has_left(11)
        assert job.sent == [(10, None, (link.End(),))]
        job.keep()
        assert [pid for pid, _, _ in job.sent[1:]] == [11], "else the next supervisor takes 10 for a successor"


async def test_held_orders_leave_before_others_keep_that_they_have_left() -> None:
    job = KeptJob()
    async with job.running():
        job.links[10].hearing.on_message(READY._replace(preloaded=()))
        job.keep(link.PrepareStore(0, "h"), SPAWN._replace(cycle=0))
        job.links[10].hearing.on_message(LEARNED)
        await settled()
        held = link.PrepareStore(1, "h")
        job.keep(held)
        (before,) = {stood.turns for _, stood, _ in job.sent[-2:] if stood is not None}
        job.sent.clear()
        job.links[11].hearing.on_message(READY)
        await settled()
        assert job.replaced == [(10, "11")]
        _, (first, stood, orders), (second, _, others) = job.sent
        assert (first, second, orders, others) == (11, 10, (held,), ())
        assert stood is not None
        assert (stood.owners, stood.turns) == ({0: 10, 1: 11}, before + 1)


async def test_one_that_was_replaced_ends_after_a_return_and_is_no_successor() -> None:
    job = KeptJob()
    job.take_back(texts(10, {1: 10}, 8), texts(10, {0: 11, 1: 10}, 7))
    async with job.running():
        job.keep(link.PrepareStore(2, "h"))
        ((pid, stood, _),) = job.sent
        assert stood is not None
        assert (pid, stood.owners) == (10, {1: 10, 2: 10})
        job.has_left(10)
        assert job.sent[1:] == [(11, None, (link.End(),))]


async def test_what_one_that_was_replaced_has_reported_is_confirmed_once_the_next_one_keeps_it() -> None:
    """Else it would repeat that to the next supervisor, and people would be told twice of a log that was closed."""
    job = KeptJob()
    async with job.running():
        job.keep(SPAWN._replace(cycle=0))
        await job.have_successor()
        job.keep(link.ForkAhead(1, 1))
        job.empties(10, 0)
        job.links[10].hearing.on_message(link.CycleLogClosed(0, "/logs/cycle_0.log", 9, 1, 0, ""))
        job.keep()
        assert job.confirmed == []
        job.has_left(11)
        assert job.confirmed == [10]


async def test_what_one_that_was_replaced_says_of_its_output_after_a_return_is_told() -> None:
    job, closed = KeptJob(), link.CycleLogClosed(0, "/logs/cycle_0.log", 9, 1, 0, "")
    job.take_back(texts(10, {1: 10}, 8), texts(10, {0: 11, 1: 10}, 7))
    async with job.running():
        job.empties(11, 0)  # the supervisor before has heard that
        job.links[11].hearing.on_message(closed)
        assert job.heard == [closed]


@pytest.mark.parametrize("is_emptied_first", [False, True])
async def test_a_cycle_that_was_only_prepared_keeps_no_spawner(is_emptied_first: bool) -> None:
    """A newer one has begun, so this node never runs it, and nothing else would end it."""
    job = KeptJob()
    async with job.running():
        job.keep(SPAWN._replace(cycle=0))
        job.links[10].hearing.on_message(LEARNED)
        await settled()
        job.keep(link.ForkAhead(1, 1))
        job.links[11].hearing.on_message(READY)
        if is_emptied_first:
            job.empties(10, 0)
        job.sent.clear()
        job.keep(link.ForkAhead(2, 1))
        if not is_emptied_first:
            job.empties(10, 0)
        assert [orders for pid, _, orders in job.sent if pid == 10 and orders] == [(link.KillTree(1),)]
        job.empties(10, 1)
        job.keep()
        job.sent.clear()
        job.has_left(11)
        assert job.sent == [(10, None, (link.End(),))]


async def test_a_cycle_that_was_only_prepared_keeps_no_spawner_after_a_return() -> None:
    job, returned = KeptJob(), KeptJob()
    async with job.running():
        job.keep(SPAWN._replace(cycle=0))
        job.keep(SPAWN)
        job.keep(link.ForkAhead(2, 1))
    stood = job.sent[-1][1]
    assert stood is not None
    returned.take_back({SUCCESSION: msgspec.json.encode(stood).decode()}, {})
    async with returned.running():
        returned.empties(10, 0)
        returned.keep(link.ForkAhead(3, 1))
        assert [orders for pid, _, orders in returned.sent if pid == 10 and orders] == [], "cycle 1 has workers"
        returned.empties(10, 1)
        assert returned.sent[-1] == (10, None, (link.KillTree(2),))
        returned.empties(10, 2)
        returned.keep()
        returned.has_left(11)
        assert returned.sent[-1] == (10, None, (link.End(),))


@pytest.mark.parametrize("spawned", ["at once", "later", "after it was held"])
async def test_a_cycle_with_workers_is_not_ended_by_the_next_one(spawned: str) -> None:
    job = KeptJob()
    is_held = spawned == "after it was held"
    async with job.running():
        job.links[10].hearing.on_message(READY._replace(preloaded=() if is_held else ("torch",)))
        job.keep(SPAWN._replace(cycle=0))
        job.links[10].hearing.on_message(LEARNED)
        await settled()
        if spawned != "at once":
            job.keep(link.ForkAhead(1, 1))
        job.keep(SPAWN)
        job.links[11].hearing.on_message(READY)
        await settled()
        owner = 10
        if is_held:
            owner = 11
            job.links[11].hearing.on_message(MORE)
            await settled()
            job.links[12].hearing.on_message(READY)
        job.empties(10, 0)
        job.keep(link.ForkAhead(2, 1))
        orders = [(pid, order) for pid, _, orders in job.sent for order in orders if not isinstance(order, link.End)]
        assert [pid for pid, order in orders if order == SPAWN] == [owner]
        assert orders[-1] == (owner + 1, link.ForkAhead(2, 1))
        assert link.KillTree(1) not in [order for _, order in orders]


@pytest.mark.parametrize(
    ("learned", "found", "again"),
    [
        (LEARNED, None, [LEARNED]),
        (MORE, READY, [MORE]),
        (LEARNED, READY, []),
        (MORE, READY._replace(preloaded=("torch", "transformers")), []),
        (MORE, READY._replace(lost="each worker loads it itself: transformers opened a socket"), []),
    ],
    ids=["none was ready", "it has loaded less", "it has loaded that", "and more", "as far as possible"],
)
async def test_a_successor_that_was_lost_while_it_loaded_is_started_again(
    learned: link.Learned, found: link.Ready | None, again: list[link.Learned]
) -> None:
    """Another one may be `found`, which is ready."""
    job = KeptJob()
    stood = texts(10, {0: 10}, 3)
    job.take_back(stood, *([stood] if found else []), learned=learned, ready=found or READY)
    async with job.running():
        await settled()
        assert job.lessons == again


@pytest.mark.parametrize("fails", ["its start", "its load", "its process"])
async def test_what_could_not_be_loaded_is_not_loaded_again_after_a_return(fails: str) -> None:
    """Else the next cycle would wait for that."""
    job, returned = KeptJob(), KeptJob()
    async with job.running():
        job.is_full = fails == "its start"
        job.links[10].hearing.on_message(LEARNED)
        await settled()
        if fails == "its load":
            job.links[11].hearing.on_message(READY._replace(preloaded=()))
        if fails == "its process":
            job.links[11].kill("the spawner (pid 11) exited with code 1")
            await settled()
            why = "nothing is loaded ahead: what loads it was lost: the spawner (pid 11) exited with code 1"
            assert job.heard[1:] == [link.Learned((), (), why)]
        assert job.lessons == [None, LEARNED]
        job.keep(link.PrepareStore(0, "h"))
    (kept,) = [stood for _, stood, _ in job.sent if stood is not None]
    returned.take_back({SUCCESSION: msgspec.json.encode(kept).decode()}, learned=LEARNED)
    async with returned.running():
        await settled()
        assert returned.lessons == []
        returned.links[10].hearing.on_message(LEARNED)  # something else
        await settled()
        returned.keep()
        assert returned.lessons == [LEARNED]
        assert [stood.is_unable for _, stood, _ in returned.sent if stood is not None][-1] is False
    assert returned.heard == [LEARNED], "a load that ends with its job has not failed"
