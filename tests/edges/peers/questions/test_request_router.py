"""Questions and answers between a leader and its nodes over real connections."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest
from anyio.abc import TaskGroup, TaskStatus

from supervisor.core import orders
from supervisor.core.cluster.cluster_messages import LeadershipTaken, NodeJoined, NodeStands
from supervisor.edges.peers.codec.cluster_frames import Asked
from supervisor.edges.peers.embedded import cluster_peers
from supervisor.edges.peers.embedded.cluster_peers import Meeting
from supervisor.edges.peers.questions import request_router
from supervisor.edges.peers.questions.request_router import RequestRouter, refuse
from supervisor.edges.peers.transport import cluster_link
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.errors import NoAnswerError, NotFoundError
from supervisor.ports.questions import (
    LEADER,
    Answer,
    CloseLogs,
    LogBytes,
    Logs,
    PeersAndNodeRequests,
    Question,
    ReadEvents,
    ReadLogs,
    Refused,
    Reply,
    SetCordon,
    ShowPart,
)
from supervisor.queries.question_inbox import QuestionInbox
from tests.edges.peers.election.memory_backend import Memory
from tests.edges.peers.election.test_elected_peers import Node as Candidate
from tests.edges.peers.election.test_elected_peers import node as elected
from tests.edges.peers.embedded.test_cluster_peers import JOB, LIMIT_S, TLS, Heard, free_port


class Node:
    """A node that identifies itself in the output of a simulated rank."""

    def __init__(self, name: str, peers: PeersAndNodeRequests, heard: Heard) -> None:
        self.name = name
        self.peers = peers
        self.heard = heard
        self.asked: list[tuple[str, Question]] = []

    def own_name(self, job_id: str) -> str:
        assert job_id == JOB
        return self.name

    async def answer(self, job_id: str, by: str, question: Question) -> Answer:
        assert job_id == JOB
        self.asked.append((by, question))
        match question:
            case SetCordon():
                raise NotFoundError("cannot do that: no")
            case ReadEvents():
                raise ZeroDivisionError
            case ReadLogs(tail_lines=size):
                return Logs((LogBytes(0, 0, False, self.name.encode() * size),))
            case CloseLogs():
                return Logs((), is_last=True)
            case _:
                await anyio.sleep_forever()
                raise AssertionError

    @property
    def router(self) -> RequestRouter:
        assert isinstance(self.peers.node_requests, RequestRouter)
        return self.peers.node_requests

    async def ask(self, to: str, question: Question, timeout_s: float = LIMIT_S) -> str:
        answer = await self.peers.node_requests.ask(JOB, to, question, timeout_s=timeout_s)
        assert isinstance(answer, Logs)
        return answer.pieces[0].output.decode()


def hello(size: int = 1) -> Question:
    return ReadLogs("reader", 1, tail_lines=size)


@asynccontextmanager
async def node(name: str, port: int, tasks: TaskGroup) -> AsyncGenerator[Node]:
    heard, questions = Heard(), QuestionInbox()
    meeting = Meeting(JOB, name, PeerAddress("127.0.0.1", port), LIMIT_S, TLS)
    async with cluster_peers.open_peers(meeting, heard.post, take_question=questions.put) as peers:
        found = Node(name, peers, heard)
        tasks.start_soon(questions.answer, found.answer, found.own_name)
        peers.report(JOB, NodeJoined(name, -1))
        yield found


@asynccontextmanager
async def three_nodes() -> AsyncGenerator[list[Node]]:
    port = free_port()
    async with anyio.create_task_group() as tasks, AsyncExitStack() as opened:
        found: list[Node] = []
        for name in "abc":
            found.append(await opened.enter_async_context(node(name, port, tasks)))
            await found[0].heard.until(lambda: len(found[0].heard.reports()) == len(found))
        yield found
        tasks.cancel_scope.cancel()


async def test_every_node_asks_every_other_and_itself():
    async with three_nodes() as nodes:
        for one, other in itertools.product(nodes, nodes):
            assert await one.ask(other.name, hello()) == other.name
            assert other.asked.pop() == (one.name, hello())
        assert [await node.ask(LEADER, hello()) for node in nodes] == ["a", "a", "a"]


async def test_a_long_answer_comes_in_parts():
    async with three_nodes() as nodes:
        size = 25 * request_router.PART_BYTES_MAX
        assert await nodes[2].ask("b", hello(size)) == "b" * size


async def test_refusals_and_defects_are_answers():
    async with three_nodes() as (_, b, c):
        with pytest.raises(NotFoundError, match="cannot do that: no"):
            await c.ask("b", SetCordon(True))
        with pytest.raises(NoAnswerError, match="cannot ask node b: a fault of its supervisor"):
            await c.ask("b", ReadEvents(0))
        with pytest.raises(NoAnswerError, match="cannot ask node d: it is not connected"):
            await c.ask("d", hello())
        with pytest.raises(NoAnswerError, match=r"cannot ask node b: no answer within 0\.05 s"):
            await c.ask("b", ShowPart(), 0.05)
        assert await c.ask("b", hello()) == "b"
        assert len(b.asked) == 4


async def test_too_many_questions_are_refused_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(request_router, "ANSWERING_MAX", 1)
    async with three_nodes() as (_, b, c), anyio.create_task_group() as tasks:
        tasks.start_soon(c.ask, "b", ShowPart())
        while not b.asked:
            await anyio.lowlevel.checkpoint()
        with pytest.raises(NoAnswerError, match="cannot answer: 1 others ask already"):
            await c.ask("b", hello())
        tasks.cancel_scope.cancel()


async def test_what_is_too_much_is_dropped_and_orders_still_arrive(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cluster_link, "ASIDES_BYTES_MAX", 3 * request_router.PART_BYTES_MAX)
    async with three_nodes() as (a, b, _):
        with pytest.raises(NoAnswerError):
            await a.ask("b", hello(9 * request_router.PART_BYTES_MAX), 0.2)
        a.peers.send("b", JOB, orders.JoinAgain(1, "a reason"))
        await b.heard.until(b.heard.orders)
        assert await a.ask("b", hello()) == "b"


async def test_nobody_waits_for_an_answer_of_a_node_that_has_parted_or_once_its_own_connections_are_closed():
    port, refusals = free_port(), list[str]()

    async def ask(one: Node, to: str) -> None:
        with pytest.raises(NoAnswerError) as refused:
            await one.ask(to, ShowPart(), timeout_s=15.0)
        refusals.append(str(refused.value))

    async with anyio.create_task_group() as tasks, node("a", port, tasks) as a:
        leave = anyio.Event()

        async def follow(*, task_status: TaskStatus[Node]) -> None:
            async with node("b", port, tasks) as b:
                task_status.started(b)
                await leave.wait()

        b: Node = await tasks.start(follow)
        await a.heard.until(lambda: len(a.heard.reports()) == 2)
        with anyio.fail_after(3.0):
            async with anyio.create_task_group() as asking:
                asking.start_soon(ask, a, "b")
                asking.start_soon(ask, b, "a")
                while not (a.asked and b.asked):
                    await anyio.lowlevel.checkpoint()
                leave.set()
        tasks.cancel_scope.cancel()
    of_a, of_b = sorted(refusals)
    assert of_a == "cannot ask node a: this node's connections to the others have been closed"
    assert of_b.startswith("cannot ask node b: its connection has ended: ")


async def test_nobody_waits_for_an_answer_of_a_node_that_has_parted_if_the_leader_is_elected():
    memory, asked, refusals = Memory(), list[str](), list[str]()

    def keep(job_id: str, by: str, question: Question, reply: Reply) -> None:
        asked.append(by)

    async def ask(one: Candidate, to: str) -> None:
        assert one.peers is not None
        with pytest.raises(NoAnswerError) as refused:
            await one.peers.node_requests.ask(JOB, to, ShowPart(), timeout_s=LIMIT_S)
        refusals.append(str(refused.value))

    async with anyio.create_task_group() as tasks, elected(memory, "a", take_question=keep) as a:
        await a.until(lambda: a.reports(LeadershipTaken))
        async with elected(memory, "b", take_question=keep) as b:
            await a.until(lambda: len(a.reports(NodeStands)) == 2)
            tasks.start_soon(ask, a, "b")
            tasks.start_soon(ask, b, LEADER)
            while len(asked) < 2:
                await anyio.lowlevel.checkpoint()
        with anyio.fail_after(LIMIT_S / 3):
            while len(refusals) < 2:
                await anyio.lowlevel.checkpoint()
    of_b, of_leader = sorted(refusals)
    assert of_b.startswith("cannot ask node b: its connection has ended: ")
    assert of_leader == "cannot ask the leader: this node's connections to the others have been closed"


async def test_it_is_quiet_once_nobody_asks_or_reads_on(monkeypatch: pytest.MonkeyPatch):
    async with three_nodes() as (_, b, c), anyio.create_task_group() as tasks:
        monkeypatch.setattr(request_router, "READ_ON_S", 60.0)
        await c.router.ask(JOB, "b", CloseLogs("reader"), timeout_s=LIMIT_S)  # The answer is the last one.
        assert await are_quiet(b, c) == [True, True]
        await c.ask("b", hello())
        assert await are_quiet(b, c) == [False, False]
        monkeypatch.setattr(request_router, "READ_ON_S", 0.01)
        await c.ask("b", hello())
        assert await are_quiet(b, c) == [True, True]
        tasks.start_soon(c.ask, "b", ShowPart())
        while b.asked[-1][1] != ShowPart():
            await anyio.lowlevel.checkpoint()
        assert await are_quiet(b, c) == [False, False]
        tasks.cancel_scope.cancel()


async def are_quiet(*nodes: Node) -> list[bool]:
    found: list[bool] = []
    for each in nodes:
        with anyio.move_on_after(0.1) as waited:
            await each.router.until_quiet()
        found.append(not waited.cancelled_caught)
    return found


async def test_a_node_asks_in_its_own_name_only(caplog: pytest.LogCaptureFixture):
    async with three_nodes() as (a, b, _):
        a.router.take("c", Asked(JOB, "a", "b", 1, b""))
        assert not a.asked
        assert not b.asked
        assert "a question of node b is dropped: it comes from node c" in caplog.text


async def test_a_node_that_takes_no_questions_says_so():
    alone = RequestRouter(own_name="a", leads=True, pass_on=lambda _, __: False, take_question=refuse)
    with pytest.raises(NoAnswerError, match="cannot answer: this node of job job takes no questions"):
        await alone.ask(JOB, "a", hello(), timeout_s=1)


def test_a_refusal_keeps_its_kind():
    with pytest.raises(NotFoundError, match="cannot find it"):
        request_router._unless_refused(Refused("NOT_FOUND", "cannot find it"))  # pyright: ignore[reportPrivateUsage]
