"""A leader and its nodes over real connections: all messages arrive once and in order, whatever breaks."""

from __future__ import annotations

import random
import resource
import socket
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream, TaskStatus

from supervisor.config.job_spec import JobSpec, Nodes
from supervisor.core import orders
from supervisor.core.cluster.cluster_messages import (
    NodeDown,
    NodeHeard,
    NodeJoined,
    NodeLost,
    NodeSilent,
    NodeStopped,
    Reported,
)
from supervisor.core.election import leader_loss_detection, node_loss_detection
from supervisor.core.facts import JobState, RendezvousRules, Verdict
from supervisor.core.node.node_messages import FenceMoved, JobAbandoned, Ordered
from supervisor.edges.machine.gpus import nvlink_domain
from supervisor.edges.machine.gpus.nvlink_domain import NoDomainError
from supervisor.edges.peers.embedded import cluster_peers
from supervisor.edges.peers.embedded.cluster_peers import FollowerPeers, LeaderPeers, Meeting
from supervisor.edges.peers.handshake import acceptor
from supervisor.edges.peers.stream import cluster_client
from supervisor.edges.peers.stream.session_store import JobPeers
from supervisor.edges.peers.transport import cluster_link, cluster_tls
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.edges.peers.transport.cluster_tls import Tls
from supervisor.errors import ConfigurationError, NotNowError
from supervisor.ports.edges import Peers
from tests.cluster.fault_proxy import Weather, obey, serve
from tests.settling import settled

JOB = "job"
TOKEN = b"a token of the test"
TLS = cluster_tls.from_token(TOKEN)
LIMIT_S = 30.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Heard:
    """What came back to one node's engine."""

    def __init__(self) -> None:
        self.events: list[Ordered | Reported | JobAbandoned] = []
        self.fences: list[FenceMoved] = []
        self.silences: list[NodeSilent | NodeHeard] = []
        self._changed = anyio.Event()

    def post(self, event: Ordered | Reported | FenceMoved | JobAbandoned) -> None:
        if isinstance(event, FenceMoved):
            self.fences.append(event)
        elif isinstance(event, Reported) and isinstance(event.report, NodeSilent | NodeHeard):
            self.silences.append(event.report)
        else:
            self.events.append(event)
        self._changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        with anyio.fail_after(LIMIT_S):
            while not condition():
                self._changed = anyio.Event()
                await self._changed.wait()

    def orders(self) -> list[orders.Order]:
        return [event.order for event in self.events if isinstance(event, Ordered)]

    def reports(self) -> list[object]:
        return [event.report for event in self.events if isinstance(event, Reported)]


@asynccontextmanager
async def peers(
    node: str, port: int, *, tls: Tls | None = TLS, job: str = JOB, join_timeout_s: float = LIMIT_S
) -> AsyncGenerator[tuple[Peers, Heard]]:
    heard = Heard()
    meeting = Meeting(job, node, PeerAddress("127.0.0.1", port), join_timeout_s, tls)
    async with cluster_peers.open_peers(meeting, heard.post) as opened:
        yield opened, heard


def again(cycle: int) -> orders.JoinAgain:
    return orders.JoinAgain(cycle, "a reason")


async def test_the_first_leads_and_all_hear_each_other_in_order():
    port = free_port()
    async with peers("a", port) as (leader, at_leader), peers("b", port) as (b, at_b), peers("c", port) as (c, at_c):
        assert isinstance(leader, LeaderPeers)
        assert tuple(each.leads(JOB) for each in (leader, b, c)) == (True, False, False)
        for number in range(100):
            leader.report(JOB, NodeDown("a", number))
            b.report(JOB, NodeDown("b", number))
            c.report(JOB, NodeDown("c", number))
        await at_leader.until(lambda: len(at_leader.events) == 300)
        for name in "abc":
            told = [each.cycle for each in at_leader.reports() if isinstance(each, NodeDown) and each.node == name]
            assert told == list(range(100))
        for number in range(100):
            for name in "abc":
                leader.send(name, JOB, again(number))
        for heard in (at_b, at_c):
            await heard.until(lambda heard=heard: len(heard.events) == 100)
            assert heard.orders() == [again(number) for number in range(100)]
        assert at_leader.orders() == [again(number) for number in range(100)]
        with pytest.raises(NotNowError, match="another node leads"):
            b.send("a", JOB, again(1))


async def test_a_node_may_come_before_its_leader():
    port = free_port()
    heard = Heard()
    client = cluster_client.ClusterClient(
        PeerAddress("127.0.0.1", port), job_id=JOB, tls=TLS, own_name="early", on_order=heard.post,
        on_lost=lambda why: heard.events.append(Reported(JOB, NodeLost("leader", why))),
    )  # fmt: skip
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: client.run(join_timeout_s=LIMIT_S))
        client.report(Reported(JOB, NodeJoined("early", -1)))
        await settled()
        async with peers("a", port) as (_, at_leader):
            await at_leader.until(lambda: at_leader.events)
            assert at_leader.reports() == [NodeJoined("early", -1)]
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def breaking_wire(port: int) -> AsyncGenerator[int]:
    """A connection to the leader that repeatedly breaks after a random number of bytes."""
    dice = random.Random(7)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)

    async def carry(source: SocketStream, sink: SocketStream, scope: anyio.CancelScope) -> None:
        left = dice.randint(50, 3000)
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            while left > 0:
                data = await source.receive(min(left, 500))
                left -= len(data)
                await sink.send(data)
        scope.cancel()

    async def serve(stream: SocketStream) -> None:
        async with stream, await anyio.connect_tcp("127.0.0.1", port) as onward, anyio.create_task_group() as both:
            both.start_soon(carry, stream, onward, both.cancel_scope)
            both.start_soon(carry, onward, stream, both.cancel_scope)

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield listener.extra(SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


async def test_a_wire_that_breaks_all_the_time_loses_and_doubles_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cluster_peers, "PARTING_S", 0.1)
    monkeypatch.setattr(leader_loss_detection, "FENCE_S", LIMIT_S)
    port = free_port()
    async with peers("a", port) as (leader, at_leader), breaking_wire(port) as broken:
        heard = Heard()
        client = cluster_client.ClusterClient(
            PeerAddress("127.0.0.1", broken), job_id=JOB, tls=TLS, own_name="b", on_order=heard.post,
            on_lost=lambda why: heard.events.append(Reported(JOB, NodeLost("leader", why))),
        )  # fmt: skip
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.run(join_timeout_s=LIMIT_S))
            for number in range(60):
                client.report(Reported(JOB, NodeDown("b", number)))
                await at_leader.until(lambda number=number: len(at_leader.events) > number // 3)
                leader.send("b", JOB, again(number))
            await at_leader.until(lambda: len(at_leader.events) == 60)
            await heard.until(lambda: len(heard.events) >= 59)
            tasks.cancel_scope.cancel()
        assert at_leader.reports() == [NodeDown("b", number) for number in range(60)]
        assert heard.orders() == [again(number) for number in range(60)][-len(heard.events) :]
        assert at_leader.silences[:3] == [NodeSilent("b"), NodeHeard("b"), NodeSilent("b")]


async def test_a_lost_node_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(node_loss_detection, "LOST_S", 0.5)
    port = free_port()
    async with peers("a", port) as (leader, at_leader):
        async with peers("gone", port) as (gone, _):
            gone.report(JOB, NodeJoined("gone", -1))
            await at_leader.until(lambda: at_leader.events)
        await at_leader.until(lambda: len(at_leader.events) == 2)
        lost = NodeLost("gone", "node gone is lost: the other side has closed the connection")
        assert at_leader.reports()[1] == lost
        leader.send("gone", JOB, again(1))  # nobody is there, and nobody is harmed


async def test_a_process_that_was_given_up_can_not_come_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(node_loss_detection, "LOST_S", 0.3)
    port, lost = free_port(), list[str]()
    async with peers("a", port) as (_, at_leader):
        client = cluster_client.ClusterClient(
            PeerAddress("127.0.0.1", port), job_id=JOB, tls=TLS, own_name="slow",
            on_order=lambda order: None, on_lost=lost.append,
        )  # fmt: skip
        client.report(Reported(JOB, NodeJoined("slow", -1)))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.run(join_timeout_s=LIMIT_S))
            await at_leader.until(lambda: at_leader.events)
            tasks.cancel_scope.cancel()
        await at_leader.until(lambda: len(at_leader.events) == 2)
        with anyio.fail_after(LIMIT_S):
            await client.run(join_timeout_s=LIMIT_S)
    assert "it was silent for too long and has been given up; start it again" in lost[0]


async def test_the_fence_holds_while_connections_that_say_nothing_are_tried(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(leader_loss_detection, "FENCE_S", 1.0)
    port, weather = free_port(), Weather(random.Random(1))
    wire = (await anyio.create_tcp_listener(local_host="127.0.0.1")).listeners[0]
    async with peers("a", port), wire, anyio.create_task_group() as tasks:
        tasks.start_soon(serve, weather, wire, ("127.0.0.1", port))
        async with peers("b", int(wire.extra(SocketAttribute.local_port))) as (_, at_b):
            await at_b.until(lambda: at_b.fences)
            obey(weather, "dead")
            obey(weather, "cut")
            await at_b.until(lambda: at_b.orders())
            assert isinstance(at_b.orders()[0], orders.StandBack)
            assert anyio.current_time() < at_b.fences[-2].until_s
        tasks.cancel_scope.cancel()


async def test_a_leader_that_stood_still_gives_a_node_its_whole_time_to_come_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(node_loss_detection, "LOST_S", 1.0)
    monkeypatch.setattr(leader_loss_detection, "FENCE_S", LIMIT_S)
    port = free_port()
    async with peers("a", port) as (_, at_leader):
        client = cluster_client.ClusterClient(
            PeerAddress("127.0.0.1", port), job_id=JOB, tls=TLS, own_name="b", on_order=lambda _: None,
            on_lost=lambda _: None,
        )  # fmt: skip
        for number in range(2):  # one process, whose connection breaks in between
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: client.run(join_timeout_s=LIMIT_S))
                client.report(Reported(JOB, NodeDown("b", number)))
                await at_leader.until(lambda number=number: len(at_leader.events) > number)
                tasks.cancel_scope.cancel()
            if not number:
                await anyio.sleep(0.2)  # the leader has noticed, and waits
                time.sleep(1.2)  # noqa: ASYNC251 - the leader's loop is blocked
        assert at_leader.reports() == [NodeDown("b", 0), NodeDown("b", 1)]


async def test_a_node_whose_leader_is_lost_ends_its_part_of_the_job(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(leader_loss_detection, "FENCE_S", 0.3)
    port = free_port()
    heard = Heard()
    ended = anyio.Event()

    async def lead(*, task_status: TaskStatus[None]) -> None:
        meeting = Meeting(JOB, "a", PeerAddress("127.0.0.1", port), LIMIT_S, TLS)
        async with cluster_peers.open_peers(meeting, heard.post):
            task_status.started()
            await ended.wait()

    async with anyio.create_task_group() as tasks:
        await tasks.start(lead)
        async with peers("b", port) as (b, at_b):
            assert isinstance(b, FollowerPeers)
            b.report(JOB, NodeJoined("b", 0))
            await heard.until(lambda: heard.events)
            ended.set()
            await at_b.until(lambda: at_b.events)
            why = f"the leader at 127.0.0.1:{port} is lost: connection refused"
            assert at_b.orders() == [orders.WindDown(why, at_once=True)]
            b.report(JOB, NodeStopped("b", all_succeeded=False))
            assert at_b.orders()[1:] == [orders.Conclude(Verdict(JobState.FAILED, 1, why))]


@pytest.mark.parametrize("was_ordered", [True, False])
async def test_another_process_that_leads_at_the_endpoint_soon_after_is_no_leader_of_this_run(was_ordered: bool):
    """A `holdfast run` that was killed is started again before its nodes have missed it: it knows nothing of them."""
    port, heard, killed, is_gone = free_port(), Heard(), anyio.CancelScope(), anyio.Event()
    meeting = Meeting(JOB, "a", PeerAddress("127.0.0.1", port), LIMIT_S, TLS)

    async def lead(*, task_status: TaskStatus[JobPeers]) -> None:
        with killed:
            async with cluster_peers.open_peers(meeting, heard.post) as leader:
                task_status.started(leader)
                await anyio.sleep_forever()
        is_gone.set()

    async with anyio.create_task_group() as tasks:
        leader = await tasks.start(lead)
        async with peers("b", port) as (b, at_b):
            b.report(JOB, NodeJoined("b", 0))
            await heard.until(heard.reports)
            if was_ordered:
                leader.send("b", JOB, again(0))
                await at_b.until(at_b.orders)
            killed.cancel()
            await is_gone.wait()
            async with peers("a", port) as (successor, _):
                assert successor.leads(JOB)
                with anyio.fail_after(3.0):
                    await at_b.until(lambda: len(at_b.orders()) > was_ordered)
            why = f"the leader at 127.0.0.1:{port} is lost: another process leads there now"
            assert at_b.orders()[was_ordered:] == [orders.WindDown(why, at_once=True)]
            b.report(JOB, NodeStopped("b", all_succeeded=False))
            assert at_b.orders()[-1] == orders.Conclude(Verdict(JobState.FAILED, 1, why))


async def test_a_node_that_waits_for_its_verdict_as_the_leader_is_lost_ends_too(monkeypatch: pytest.MonkeyPatch):
    """Found by the simulator, seed 20: it had stopped, was cut off, and waited indefinitely."""
    monkeypatch.setattr(leader_loss_detection, "FENCE_S", 0.3)
    port = free_port()
    heard = Heard()
    ended = anyio.Event()

    async def lead(*, task_status: TaskStatus[None]) -> None:
        meeting = Meeting(JOB, "a", PeerAddress("127.0.0.1", port), LIMIT_S, TLS)
        async with cluster_peers.open_peers(meeting, heard.post):
            task_status.started()
            await ended.wait()

    async with anyio.create_task_group() as tasks:
        await tasks.start(lead)
        async with peers("b", port) as (b, at_b):
            b.report(JOB, NodeStopped("b", all_succeeded=True))
            await heard.until(lambda: heard.events)
            assert at_b.orders() == []
            ended.set()
            await at_b.until(lambda: len(at_b.events) == 2)
            why = f"the leader at 127.0.0.1:{port} is lost: connection refused"
            failed = Verdict(JobState.FAILED, 1, why)
            assert at_b.orders() == [orders.WindDown(why, at_once=True), orders.Conclude(failed)]


@pytest.mark.parametrize(
    ("node", "job", "why"),
    [
        ("a", JOB, "another node of the job is called a; give each a --local-addr of its own"),
        ("b", JOB, "another node of the job is called b; give each a --local-addr of its own"),
        ("c", "other", "it wants job other, and this is job job"),
    ],
)
async def test_who_may_not_join_is_told_why_and_harms_nobody(node: str, job: str, why: str):
    port = free_port()
    async with peers("a", port) as (leader, at_leader), peers("b", port) as (b, at_b):
        b.report(JOB, NodeJoined("b", -1))
        await at_leader.until(lambda: at_leader.events)
        async with peers(node, port, job=job) as (_, at_stranger):
            await at_stranger.until(lambda: at_stranger.events)
            refused = f"the leader at 127.0.0.1:{port} refuses this node: {why}"
            assert at_stranger.orders() == [orders.WindDown(refused, at_once=True)]
        leader.send("b", JOB, again(1))
        await at_b.until(lambda: at_b.events)
        assert at_b.orders() == [again(1)]


async def test_what_a_node_says_for_another_is_dropped():
    port = free_port()
    async with peers("a", port) as (_, at_leader), peers("b", port) as (b, _):
        b.report(JOB, NodeJoined("c", -1))
        b.report(JOB, NodeJoined("b", -1))
        await at_leader.until(lambda: at_leader.events)
        assert at_leader.reports() == [NodeJoined("b", -1)]


async def test_strangers_bytes_and_silence_do_not_disturb_the_leader(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cluster_link, "HANDSHAKE_S", 0.2)
    monkeypatch.setattr(acceptor, "SILENT_S", 0.2)
    port = free_port()
    async with peers("a", port) as (_, at_leader):
        dice = random.Random(3)
        for _ in range(20):
            async with await anyio.connect_tcp("127.0.0.1", port) as stranger:
                with suppress(anyio.BrokenResourceError):
                    await stranger.send(dice.randbytes(dice.randint(1, 2000)))
        async with await anyio.connect_tcp("127.0.0.1", port) as silent:
            with anyio.fail_after(LIMIT_S):
                assert [data async for data in silent] == []  # no greeting before it has said something
        async with peers("b", port) as (b, _):
            b.report(JOB, NodeJoined("b", -1))
            await at_leader.until(lambda: at_leader.events)
        assert at_leader.reports() == [NodeJoined("b", -1)]


async def test_a_leader_without_descriptors_takes_nodes_again_later(monkeypatch: pytest.MonkeyPatch):
    port = free_port()
    async with peers("a", port) as (_, at_leader):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        probe = socket.socket()
        resource.setrlimit(resource.RLIMIT_NOFILE, (probe.fileno() + 1, hard))
        try:
            probe.setblocking(False)
            with suppress(BlockingIOError):
                probe.connect(("127.0.0.1", port))
            await settled()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            probe.close()
        async with peers("b", port) as (b, _):
            b.report(JOB, NodeJoined("b", -1))
            await at_leader.until(lambda: at_leader.events)


async def test_the_store_is_served_where_other_nodes_reach_this_one():
    nodes = Nodes(2, 2, "127.0.0.1", 1234, "a")
    spec = JobSpec("job", ("train.py",), nodes=nodes)
    assert (await cluster_peers.at_own_address(spec, nodes)).master_addr == "127.0.0.1"
    named = JobSpec("job", ("train.py",), nodes=nodes, master_addr="node-7")
    assert (await cluster_peers.at_own_address(named, nodes)).master_addr == "node-7"


async def test_a_job_with_segments_knows_its_nodes_domain_or_says_why_not(monkeypatch: pytest.MonkeyPatch):
    segments = JobSpec("job", ("train.py",), rendezvous=RendezvousRules(2, segment=2))
    asked: list[str] = []

    async def domain() -> str:
        if asked:
            raise NoDomainError("NVML does not answer within 20 s")
        asked.append("once")
        return "pod1"

    monkeypatch.setattr(nvlink_domain, "nvlink_domain", domain)
    plain = JobSpec("job", ("train.py",))
    assert await cluster_peers.in_own_domain(plain) is plain
    known = await cluster_peers.in_own_domain(segments)
    assert known.facts.domain == "pod1"
    assert await cluster_peers.in_own_domain(known) is known
    with pytest.raises(ConfigurationError) as caught:
        await cluster_peers.in_own_domain(segments)
    assert str(caught.value) == (
        "cannot use --ft-segment 2: the NVLink domain of this node is not known: NVML does not answer within 20 s; "
        "check nvidia-smi -q, or write --rdzv-conf nvlink_domain=NAME"
    )
