"""Does the leader learn every event once it answers, and does nobody wait for it?"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
from msgspec.structs import replace

from supervisor.engine import leaders_events, unsent_events
from supervisor.engine.unsent_events import UnsentEvents
from supervisor.ports.questions import LEADER, Answer, NodeEvents, Question, TellUpdate, UpdateTaken
from supervisor.queries import event_forwarder
from supervisor.queries.event_forwarder import EventForwarder
from tests.engine.world import SetClock
from tests.queries.shared_job import FakeNodeRequests, happened, part
from tests.settling import settled

LIMIT_S = 20.0


class Leader:
    """Accepts events in order."""

    def __init__(self) -> None:
        self.through = 0
        self.pace_s = 0.0
        self.follows_on = False  # takes all that comes in one message
        self.messages: list[TellUpdate] = []
        self.changed = anyio.Event()

    def answer(self, question: Question) -> Answer:
        assert isinstance(question, TellUpdate)
        self.messages.append(question)
        for event in question.events:
            if (
                self.follows_on
                or event.sequence == self.through + 1
                or (not self.through and event.sequence == question.gone_through + 1)
            ):
                self.through = event.sequence
        self.changed.set()
        return UpdateTaken(self.through, self.pace_s)

    async def until(self, through: int) -> None:
        with anyio.fail_after(LIMIT_S):
            while self.through < through:
                self.changed = anyio.Event()
                await self.changed.wait()


@asynccontextmanager
async def working(
    node_requests: FakeNodeRequests, record: Callable[[str, NodeEvents], None] = lambda _, __: None
) -> AsyncGenerator[UnsentEvents]:
    news = UnsentEvents()
    forwarder = EventForwarder(
        unsent=news,
        node_requests=node_requests,
        own_part=lambda _: part("n1", 2, 3),
        record=record,
        clock=SetClock(),
        jitter=lambda: 0.5,
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(forwarder.run)
        yield news
        tasks.cancel_scope.cancel()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_forwarder, "PACE_S", 0.01)
    monkeypatch.setattr(event_forwarder, "AGAIN_S", 0.01)


async def test_events_are_told_together_and_each_once():
    leader, node_requests = Leader(), FakeNodeRequests(leads=False)
    node_requests.answers[LEADER] = leader.answer
    async with working(node_requests) as news:
        for event in happened("n1", *range(1, 41)):
            news.note(event)
        await leader.until(40)
        news.note(happened("n1", 41)[0])
        await leader.until(41)
    assert [len(message.events) for message in leader.messages] == [40, 1]


async def test_a_leader_that_does_not_answer_is_told_later_and_a_new_one_all():
    leader, node_requests = Leader(), FakeNodeRequests(leads=False)
    async with working(node_requests) as news:
        for event in happened("n1", 1, 2, 3):
            news.note(event)
        while len(node_requests.asked) < 3:
            await anyio.lowlevel.checkpoint()
        node_requests.answers[LEADER] = leader.answer
        await leader.until(3)
        successor = Leader()
        node_requests.answers[LEADER] = successor.answer
        news.note(happened("n1", 4)[0])
        await successor.until(4)


async def test_what_has_happened_between_events_of_other_nodes_is_told_with_what_came_before_it():
    leader, node_requests = Leader(), FakeNodeRequests(leads=False)
    node_requests.answers[LEADER] = leader.answer
    leader.follows_on = True
    async with working(node_requests) as news:
        for event in happened("n1", 1, 2, 5):
            news.note(event)
        await leader.until(5)
        news.note(happened("n1", 9)[0])
        await leader.until(9)
    assert [message.after for message in leader.messages if message.events] == [0, 5]


async def test_too_many_are_given_up_from_the_oldest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(unsent_events, "KEPT_EVENTS_MAX", 10)
    leader, node_requests = Leader(), FakeNodeRequests(leads=False)
    async with working(node_requests) as news:
        for event in happened("n1", *range(1, 31)):
            news.note(event)
        node_requests.answers[LEADER] = leader.answer
        await leader.until(30)
    assert leader.messages[0].gone_through == 20
    assert leader.messages[0].events[0].sequence == 21


async def test_a_message_has_a_bounded_size():
    leader, node_requests = Leader(), FakeNodeRequests(leads=False)
    node_requests.answers[LEADER] = leader.answer
    long = (("stack", "x" * 40_000),)
    async with working(node_requests) as news:
        for event in happened("n1", 1, 2, 3, 4):
            news.note(replace(event, details=long))
        news.note(replace(happened("n1", 5)[0], details=long * 9))
        await leader.until(5)
    assert [len(message.events) for message in leader.messages] == [2, 3]
    assert leader.messages[-1].events[-1].details == (("left_out", "9 details, which the journal of node n1 has"),)


async def test_one_that_leads_tells_nobody():
    node_requests = FakeNodeRequests(leads=True)
    async with working(node_requests) as news:
        news.note(happened("n0", 1)[0])
        await settled()
    assert node_requests.asked == []


async def test_a_leader_of_many_nodes_is_told_at_its_own_pace():
    leader, node_requests = Leader(), FakeNodeRequests(leads=False)
    leader.pace_s = 0.05
    node_requests.answers[LEADER] = leader.answer
    async with working(node_requests) as news:
        news.note(happened("n1", 1)[0])
        await leader.until(1)
        told_at_s = anyio.current_time()
        news.note(happened("n1", 2)[0])
        await leader.until(2)
        assert anyio.current_time() - told_at_s >= 0.05 + 0.5 * 0.05


async def test_the_past_of_a_job_that_another_supervisor_has_begun_is_told_as_far_as_the_leader_wants_it():
    leader, node_requests = Leader(), FakeNodeRequests(leads=False)
    leader.through = 3
    node_requests.answers[LEADER] = leader.answer
    async with working(node_requests) as news:
        news.note(happened("n1", 6)[0])
        news.recall("j", happened("n1", 1, 2, 3, 4, 5))
        await leader.until(6)
    assert [event.sequence for event in leader.messages[-1].events] == [1, 2, 3, 4, 5, 6]


async def test_the_last_news_of_a_job_are_told_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(event_forwarder, "AGAIN_S", 3600.0)
    monkeypatch.setattr(leaders_events, "AT_ONCE_MAX", 2)
    leader, node_requests = Leader(), FakeNodeRequests(leads=False)
    async with working(node_requests) as news:
        for event in happened("n1", *range(1, 6)):
            news.note(event)
        while not node_requests.asked:  # in vain: the next attempt is an hour away
            await anyio.lowlevel.checkpoint()
        node_requests.answers[LEADER] = leader.answer
        with anyio.fail_after(LIMIT_S):
            await news.tell_last("j")
    assert [len(message.events) for message in leader.messages] == [2, 2, 1]


async def test_the_events_of_a_leader_are_recorded_here_and_told_to_the_next_one():
    recorded: list[tuple[str, int]] = []
    leader, successor, node_requests = Leader(), Leader(), FakeNodeRequests(leads=False)

    def record(job_id: str, told: NodeEvents) -> None:
        recorded.extend((told.node, event.sequence) for event in told.events)

    def answer(question: Question) -> Answer:
        assert isinstance(question, TellUpdate)
        taken = leader.answer(question)
        assert isinstance(taken, UpdateTaken)
        return replace(taken, own=NodeEvents("n0", 7, happened("n0", question.leader_through + 1)[: len(recorded) < 3]))

    def answer_next(question: Question) -> Answer:
        taken = successor.answer(question)
        assert isinstance(taken, UpdateTaken)
        return replace(taken, own=NodeEvents("n2", 8))

    node_requests.answers[LEADER] = answer
    async with working(node_requests, record) as news:
        news.note(happened("n1", 1)[0])
        with anyio.fail_after(LIMIT_S):
            while len(recorded) < 3:
                await anyio.lowlevel.checkpoint()
            node_requests.answers[LEADER] = answer_next
            news.note(happened("n1", 2)[0])
            while not any(message.others for message in successor.messages):
                await anyio.lowlevel.checkpoint()
    assert recorded == [("n0", 1), ("n0", 2), ("n0", 3)]
    (others,) = (message.others for message in successor.messages if message.others)
    assert [(each.node, [event.sequence for event in each.events]) for each in others] == [("n0", [1, 2, 3])]


async def test_a_leader_that_takes_nothing_does_not_hold_up_the_end():
    node_requests = FakeNodeRequests(leads=False)
    node_requests.answers[LEADER] = lambda _: UpdateTaken(0, 0.0)
    async with working(node_requests) as news:
        news.note(happened("n1", 1)[0])
        with anyio.fail_after(LIMIT_S):
            await news.tell_last("j")
            await news.tell_last("unknown")


class SlowNodeRequests(FakeNodeRequests):
    """They answer once they may."""

    def __init__(self) -> None:
        super().__init__(leads=False)
        self.may_answer = anyio.Event()

    async def ask(self, job_id: str, to: str, question: Question, *, timeout_s: float) -> Answer:
        self.asked.append((to, question))
        await self.may_answer.wait()
        return self.answers[to](question)


@pytest.mark.parametrize("parts", [1, 2])
async def test_what_two_messages_at_once_carry_of_another_node_counts_as_told_once(
    parts: int, caplog: pytest.LogCaptureFixture
):
    """The job ends while a message waits for its answer, and the last one carries the same."""
    leader, node_requests = Leader(), SlowNodeRequests()
    node_requests.answers[LEADER] = leader.answer
    owed = [NodeEvents("n0", 7, happened("n0", number)) for number in range(1, parts + 1)]
    async with working(node_requests) as news:
        news.of("j").owed.extend(owed)
        news.note(happened("n1", 2)[0])
        async with anyio.create_task_group() as tasks:
            with anyio.fail_after(LIMIT_S):
                while len(node_requests.asked) < 1:
                    await anyio.lowlevel.checkpoint()
                tasks.start_soon(news.tell_last, "j")
                while len(node_requests.asked) < 2:
                    await anyio.lowlevel.checkpoint()
                node_requests.may_answer.set()
                while len(leader.messages) < 1 + parts:
                    await anyio.lowlevel.checkpoint()
        await settled()
    assert [message.others for message in leader.messages] == [(owed[0],), (owed[0],), *((each,) for each in owed[1:])]
    assert not caplog.records
