"""A leader, or a follower, is killed repeatedly: the next process continues, and no message is lost or doubled."""

from __future__ import annotations

import random

import anyio
import msgspec
import pytest

from supervisor.config.job_spec import KEPT_NODES_MAX
from supervisor.core import orders
from supervisor.core.cluster.cluster_messages import NodeDown, NodeHeard, NodeLost, NodeSilent, Reported
from supervisor.core.election import leader_loss_detection, node_loss_detection
from supervisor.core.node.node_messages import FenceMoved, JobAbandoned, Ordered
from supervisor.core.session_state import JobSessions, NodeSessionState, SessionState
from supervisor.edges.peers.embedded import cluster_peers
from supervisor.edges.peers.embedded.cluster_peers import LeaderPeers, Meeting
from supervisor.edges.peers.embedded.peers_of_jobs import FromPeers
from supervisor.edges.peers.stream.session_store import JobPeers, SessionStore
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.errors import ConfigurationError
from tests.edges.peers.embedded.test_cluster_peers import JOB, LIMIT_S, TLS, again, free_port, peers

WORDS = 300
KILLS = 12


class Side:
    """One node's supervisor, which is killed and comes back. Only kept data outlives it."""

    def __init__(self, name: str, port: int, *, leads: bool) -> None:
        self.meeting = Meeting(JOB, name, PeerAddress("127.0.0.1", port), LIMIT_S, TLS)
        self.leads = leads
        self.letters: JobSessions | None = None
        self.kept: tuple[tuple[int, ...], int] = ((), 0)  # what was heard, and how much was sent
        self.wrong: list[FromPeers] = []

    async def live(self, ends: anyio.Event, chance: random.Random) -> None:
        heard, said = list(self.kept[0]), self.kept[1]
        is_alive = True
        is_begun = False  # all was kept once, and after that what changes

        def post(event: Ordered | Reported | FenceMoved | JobAbandoned) -> None:
            match event:
                case Ordered(order=orders.JoinAgain(number)) | Reported(report=NodeDown(cycle=number)) if is_alive:
                    heard.append(number)
                case FenceMoved() | Reported(report=NodeSilent() | NodeHeard()):
                    pass
                case _:
                    if is_alive:
                        self.wrong.append(event)

        def keep() -> bool:
            if not is_alive or not opened or chance.random() < 0.2:
                return False
            (current,) = opened
            letters = current.session_state(whole=not is_begun)
            self.letters, self.kept = merged(self.letters, letters), (tuple(heard), said)
            return True

        session_store, opened = SessionStore(keep, self.letters), list[JobPeers]()
        async with anyio.create_task_group() as tasks:

            async def be() -> None:
                nonlocal said, is_begun
                async with cluster_peers.open_peers(self.meeting, post, session_store) as peers:
                    opened.append(peers)
                    assert peers.leads(JOB) is self.leads
                    is_begun = keep()
                    while True:
                        if not self.leads and said < WORDS:
                            peers.report(JOB, NodeDown("b", said))
                            said += 1
                        elif heard and said < WORDS:  # a leader speaks to nodes that it has heard
                            peers.send("b", JOB, orders.JoinAgain(said, "why"))
                            said += 1
                        keep()
                        await anyio.sleep(chance.uniform(0, 0.002))

            tasks.start_soon(be)
            await ends.wait()
            is_alive = False
            tasks.cancel_scope.cancel()

    @property
    def is_done(self) -> bool:
        return self.kept == (tuple(range(WORDS)), WORDS)


def merged(kept: JobSessions | None, read: JobSessions) -> JobSessions:
    """Returns what is kept once the changes are."""
    if read.is_whole or kept is None:
        return read
    nodes = {each.node: each for each in (*kept.nodes, *read.nodes) if each.node not in read.left}
    return msgspec.structs.replace(read, nodes=tuple(nodes.values()), is_whole=True, left=())


@pytest.mark.parametrize("killed", ["leader", "follower", "both"])
async def test_no_word_is_lost_or_doubled_however_often_a_side_is_killed(killed: str):
    chance = random.Random(killed)
    port = free_port()
    a, b = Side("a", port, leads=True), Side("b", port, leads=False)

    async def be_killed(side: Side, kills: int) -> None:
        for number in range(kills + 1):
            ends = anyio.Event()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(side.live, ends, chance)
                if number < kills:
                    await anyio.sleep(chance.uniform(0.0, 0.15))
                else:
                    while not (a.is_done and b.is_done):  # noqa: ASYNC110 - kept data has no event
                        await anyio.sleep(0.01)
                ends.set()

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(be_killed, a, KILLS if killed != "follower" else 0)
            # A node that comes first would lead if the address is its own, too.
            while a.letters is None:  # noqa: ASYNC110 - the same
                await anyio.sleep(0.001)
            tasks.start_soon(be_killed, b, KILLS if killed != "leader" else 0)
    assert not a.wrong
    assert not b.wrong


@pytest.mark.parametrize(("kept_term", "term"), [(None, 1), (7, 7)])  # None: by an earlier version
async def test_a_leader_that_comes_back_has_its_term_and_gives_a_node_up_that_does_not(
    monkeypatch: pytest.MonkeyPatch, kept_term: int | None, term: int
):
    monkeypatch.setattr(node_loss_detection, "LOST_S", 0.3)
    port = free_port()
    session = NodeSessionState("gone", "of gone", SessionState())
    kept = JobSessions(leads=True, nodes=(session,), gone=("older",), term=kept_term)
    lost: list[NodeLost] = []
    known = anyio.Event()

    def post(event: FromPeers) -> None:
        assert isinstance(event, Reported)
        if isinstance(event.report, NodeLost):
            lost.append(event.report)
            known.set()
        else:
            assert event.report == NodeSilent("gone"), "nothing begins on it meanwhile"

    meeting = Meeting(JOB, "a", PeerAddress("127.0.0.1", port), LIMIT_S, TLS)
    async with cluster_peers.open_peers(meeting, post, SessionStore(None, kept)) as peers:
        with anyio.fail_after(LIMIT_S):
            await known.wait()
        gone = JobSessions(leads=True, gone=("older", "of gone"), term=term)
        assert peers.session_state(whole=False) == msgspec.structs.replace(gone, is_whole=False, left=("gone",))
        assert peers.session_state(whole=False) == msgspec.structs.replace(gone, is_whole=False)
        assert peers.session_state() == gone
    assert [each.node for each in lost] == ["gone"]
    assert "it has not come back to the leader's new supervisor" in lost[0].reason


async def test_a_node_that_comes_back_too_late_ends_its_workers():
    port = free_port()
    said: list[FromPeers] = []
    known_at_s = anyio.current_time() - leader_loss_detection.FENCE_S - 1.0
    kept = JobSessions(incarnation="of b", term=1, known_at_s=known_at_s)
    meeting = Meeting(JOB, "b", PeerAddress("127.0.0.1", port), LIMIT_S, TLS)
    async with cluster_peers.open_peers(meeting, said.append, SessionStore(None, kept)) as peers:
        assert not peers.leads(JOB)  # the address is its own, and free
        with anyio.fail_after(LIMIT_S):
            while not said:  # noqa: ASYNC110 - a list tells nobody
                await anyio.sleep(0.001)
    assert isinstance(said[0], Ordered)
    assert isinstance(said[0].order, orders.StandBack | orders.WindDown), "it may have learned that nobody listens"


async def test_a_leader_whose_address_was_taken_can_t_come_back():
    port = free_port()
    meeting = Meeting(JOB, "a", PeerAddress("127.0.0.1", port), LIMIT_S, TLS)
    said: list[FromPeers] = []
    async with cluster_peers.open_peers(meeting, said.append):
        with pytest.raises(ConfigurationError, match="again: something else listens there"):
            async with cluster_peers.open_peers(meeting, said.append, SessionStore(None, JobSessions(leads=True))):
                pytest.fail("two lead")


async def test_a_leader_hears_its_nodes_until_the_last_has_left():
    port = free_port()
    async with peers("a", port) as (leader, _), anyio.create_task_group() as tasks:
        assert isinstance(leader, LeaderPeers)
        entered, may_leave, left = anyio.Event(), anyio.Event(), list[str]()

        async def follow() -> None:
            async with peers("b", port) as (b, at_b):
                b.report(JOB, NodeDown("b", 1))
                await at_b.until(lambda: at_b.events)
                entered.set()
                await may_leave.wait()
                left.append("b")

        tasks.start_soon(follow)
        while not entered.is_set():
            leader.send("b", JOB, again(1))
            await anyio.lowlevel.checkpoint()
        with anyio.move_on_after(0.05) as waiting:
            await leader.until_all_have_left()
        assert waiting.cancelled_caught
        may_leave.set()
        with anyio.fail_after(LIMIT_S):
            await leader.until_all_have_left()
        assert left == ["b"]


@pytest.mark.parametrize(("others", "waits"), [(1, True), (KEPT_NODES_MAX, False)])
async def test_orders_wait_to_be_kept_unless_the_nodes_are_too_many_to_be_led_again(others: int, waits: bool):
    port, asked = free_port(), list[str]()

    def keep() -> bool:
        asked.append("keep")
        return True

    meeting = Meeting(JOB, "a", PeerAddress("127.0.0.1", port), LIMIT_S, TLS, nodes_max=others)
    came = anyio.Event()
    async with (
        cluster_peers.open_peers(meeting, lambda _: came.set(), SessionStore(keep)) as leader,
        peers("b", port) as (b, at_b),
    ):
        b.report(JOB, NodeDown("b", 1))
        with anyio.fail_after(LIMIT_S):
            await came.wait()
        leader.send("b", JOB, again(1))
        await at_b.until(at_b.orders)
    assert bool(asked) is waits
