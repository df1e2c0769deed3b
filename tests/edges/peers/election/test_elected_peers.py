"""Nodes elect their leader: who leads, who learns it, and what happens if leader or backend are lost."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import msgspec
import pytest

from supervisor.core import fence_times, orders
from supervisor.core.cluster.cluster_messages import (
    Event,
    JobOpened,
    LeadershipLost,
    LeadershipTaken,
    MemberState,
    NodeDown,
    NodeLost,
    NodeStands,
    NodeStopped,
    Reported,
    StopAsked,
)
from supervisor.core.election import candidate, leader_loss_detection, link_silence, node_fence
from supervisor.core.facts import JobRules, JobState, Verdict
from supervisor.core.leader_ledger import Former, Ledger, after_all_know
from supervisor.core.node.node_messages import FenceMoved, JobAbandoned, Ordered
from supervisor.core.session_state import Candidate, JobSessions
from supervisor.edges.peers.election import elected_peers, election
from supervisor.edges.peers.election.elected_peers import ElectedPeers
from supervisor.edges.peers.election.voter import Voter
from supervisor.edges.peers.questions.request_router import refuse
from supervisor.edges.peers.stream.session_store import SessionStore
from supervisor.ports.questions import TakeQuestion
from supervisor.ports.rendezvous_backend import Leader
from tests.edges.peers.election.memory_backend import Memory, MemoryBackend, MemoryLead
from tests.edges.peers.embedded.test_cluster_peers import TLS

JOB = "job"
LIMIT_S = 30.0
RULES = JobRules(JOB, 1)


class Node:
    """One node: what its engine would do at once, and what it received."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.peers: ElectedPeers | None = None
        self.events: list[Ordered | Reported | FenceMoved | JobAbandoned] = []
        self._changed = anyio.Event()

    def post(self, event: Ordered | Reported | FenceMoved | JobAbandoned) -> None:
        self.events.append(event)
        self._changed.set()
        assert self.peers is not None
        if isinstance(event, Ordered) and isinstance(event.order, orders.Introduce):
            self.peers.report(JOB, NodeStands(self.name, RULES, MemberState.RUNNING, 3))
        if isinstance(event, Ordered) and isinstance(event.order, orders.WindDown):
            self.peers.report(JOB, NodeStopped(self.name, all_succeeded=False))

    async def until(self, condition: Callable[[], object]) -> None:
        with anyio.fail_after(LIMIT_S):
            while not condition():
                self._changed = anyio.Event()
                await self._changed.wait()

    def reports(self, *kinds: type) -> list[Event | LeadershipTaken | LeadershipLost]:
        return [each.report for each in self.events if isinstance(each, Reported) and isinstance(each.report, kinds)]

    def ordered(self, *kinds: type) -> list[orders.Order]:
        return [each.order for each in self.events if isinstance(each, Ordered) and isinstance(each.order, kinds)]


@asynccontextmanager
async def node(
    memory: Memory,
    name: str,
    *,
    join_timeout_s: float = LIMIT_S,
    begins: bool = True,
    kept: JobSessions | None = None,
    take_question: TakeQuestion = refuse,
) -> AsyncGenerator[Node]:
    voter = Voter(JOB, name, "127.0.0.1", join_timeout_s, TLS)
    this = Node(name)
    session_store = SessionStore(kept=kept)
    async with election.open_elected(
        voter, MemoryBackend(memory, name), this.post, session_store, take_question=take_question
    ) as peers:
        assert isinstance(peers, ElectedPeers)
        this.peers = peers
        if begins:
            peers.report(JOB, JobOpened(name, RULES))
        yield this
    for _ in range(3):
        await anyio.lowlevel.checkpoint()  # a connection that was just begun is closed in the loop's next turns


async def test_one_leads_the_others_introduce_themselves_and_a_record_comes_before_its_orders():
    memory = Memory()
    async with node(memory, "a") as a:
        await a.until(lambda: a.reports(LeadershipTaken))
        async with node(memory, "b") as b:
            await a.until(lambda: len(a.reports(NodeStands)) == 2)
            assert a.peers is not None
            assert b.peers is not None
            assert (a.peers.leads(JOB), b.peers.leads(JOB)) == (True, False)
            a.peers.record(JOB, Ledger(4, 4, 1))
            a.peers.send("b", JOB, orders.JoinAgain(5, "a reason"))
            a.peers.send("a", JOB, orders.JoinAgain(5, "a reason"))
            await b.until(lambda: b.ordered(orders.JoinAgain))
            await a.until(lambda: a.ordered(orders.JoinAgain))
            assert msgspec.json.decode(memory.state, type=Ledger) == Ledger(4, 4, 1)
            b.peers.report(JOB, NodeDown("b", 4))
            await a.until(lambda: a.reports(NodeDown))


async def test_the_leader_is_lost_another_takes_over_with_its_ledger_and_a_wish_is_said_again():
    memory = Memory()
    async with node(memory, "b", begins=False) as b, node(memory, "c", begins=False) as c:
        assert b.peers is not None
        assert c.peers is not None
        async with node(memory, "a") as a:
            await a.until(lambda: a.reports(LeadershipTaken))
            assert a.peers is not None
            b.peers.report(JOB, JobOpened("b", RULES))
            c.peers.report(JOB, JobOpened("c", RULES))
            await a.until(lambda: len(a.reports(NodeStands)) == 3)
            a.peers.record(JOB, Ledger(4, 4, 1))
            await a.peers.until_all_is_heard()
            c.peers.report(JOB, StopAsked("a person", 0))
        await b.until(lambda: b.reports(LeadershipTaken) or c.reports(LeadershipTaken))
        leader = b if b.reports(LeadershipTaken) else c
        taken = leader.reports(LeadershipTaken)[-1]
        assert isinstance(taken, LeadershipTaken)
        assert (taken.ledger, taken.term) == (Ledger(4, 4, 1), 2)
        await leader.until(lambda: {each.node for each in leader.reports(NodeStands)} == {"b", "c"})  # pyright: ignore
        await leader.until(lambda: leader.reports(StopAsked))
        assert not b.ordered(orders.StandBack)
        assert not c.ordered(orders.StandBack)


async def test_the_spawner_hears_that_this_supervisor_does_not_stand_still_whoever_leads():
    async with node(Memory(), "a") as a:
        await a.until(lambda: sum(isinstance(each, FenceMoved) for each in a.events) >= 3)
        moved_s = [each.until_s for each in a.events if isinstance(each, FenceMoved)]
    assert moved_s == sorted(moved_s)
    steps_s = [later - before for before, later in itertools.pairwise(moved_s)]
    assert max(steps_s) < leader_loss_detection.FENCE_S / 2


async def test_a_supervisor_that_comes_back_goes_on_with_the_words_to_the_leader_as_the_same_node():
    memory = Memory()
    async with node(memory, "a") as a:
        await a.until(lambda: a.reports(LeadershipTaken))
        async with node(memory, "b") as b:
            await a.until(lambda: len(a.reports(NodeStands)) == 2)
            assert a.peers is not None
            assert b.peers is not None
            a.peers.send("b", JOB, orders.JoinAgain(4, "heard"))
            await b.until(lambda: b.ordered(orders.JoinAgain))
            kept = b.peers.session_state()
        memory.away.add("b")  # It finds the leader, although the backend does not answer.
        async with node(memory, "b", begins=False, kept=kept) as b:
            assert b.peers is not None
            b.peers.report(JOB, NodeDown("b", 4))
            await a.until(lambda: a.reports(NodeDown))
            a.peers.send("b", JOB, orders.JoinAgain(5, "new"))
            await b.until(lambda: b.ordered(orders.JoinAgain))
            assert b.ordered(orders.JoinAgain, orders.Introduce) == [orders.JoinAgain(5, "new")]
        assert len(a.reports(NodeStands)) == 2
        assert not a.reports(NodeLost)


async def test_a_supervisor_that_comes_back_ends_the_lead_of_the_one_before_and_says_a_wish_again():
    memory = Memory(ttl_s=600.0)
    memory.term, memory.state = 3, msgspec.json.encode(Ledger(4, 4, 1))
    memory.elect(Leader(3, "a", "127.0.0.1:1", 600.0))
    now_s = anyio.current_time()
    candidate = Candidate("process", 2, wishes=((now_s, StopAsked("a person", 0)),))
    kept = JobSessions(leads=True, term=3, candidate=candidate, known_at_s=now_s)
    async with node(memory, "a", begins=False, kept=kept) as a:
        await a.until(lambda: a.reports(StopAsked))
        (taken,) = a.reports(LeadershipTaken)
        assert isinstance(taken, LeadershipTaken)
        assert (taken.term, taken.ledger) == (4, Ledger(4, 4, 1))
        (stands,) = a.reports(NodeStands)
        assert isinstance(stands, NodeStands)
        assert (stands.rules.facts.process, stands.met_term) == ("process", 2)
        assert not a.ordered(orders.StandBack)


async def test_a_supervisor_that_comes_back_too_late_ends_its_workers():
    memory = Memory()
    memory.away.add("a")
    known_at_s = anyio.current_time() - fence_times.FENCE_S
    kept = JobSessions(leads=True, term=3, candidate=Candidate("process", 2), known_at_s=known_at_s)
    async with node(memory, "a", begins=False, kept=kept) as a:
        await a.until(lambda: a.ordered(orders.StandBack))


WITH_BOTH = Ledger(4, 4, 1, parts=("a", "b"), witnesses=("a", "b"))


@pytest.fixture
def short_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fence_times, node_fence, candidate, elected_peers, leader_loss_detection):
        monkeypatch.setattr(module, "FENCE_S", 1.0)
    monkeypatch.setattr(fence_times, "HEARD_S", 0.6)
    monkeypatch.setattr(candidate, "HEARD_S", 0.6)
    monkeypatch.setattr(link_silence, "ALIVE_S", 0.2)
    monkeypatch.setattr(candidate, "AGAIN_S", 0.1)
    monkeypatch.setattr(elected_peers, "WATCH_AGAIN_S", 0.1)


@pytest.mark.usefixtures("short_fence")
async def test_a_leader_that_can_not_renew_orders_nothing_and_training_goes_on_while_all_witnesses_are_with_it():
    memory = Memory(ttl_s=0.2)
    async with node(memory, "a") as a:
        await a.until(lambda: a.reports(LeadershipTaken))
        async with node(memory, "b") as b:
            await a.until(lambda: len(a.reports(NodeStands)) == 2)
            assert a.peers is not None
            a.peers.record(JOB, WITH_BOTH)
            await a.peers.until_all_is_heard()
            memory.away = {"a", "b"}
            await anyio.sleep(1.5)  # longer than the fence
            a.peers.send("b", JOB, orders.JoinAgain(5, "a reason"))
            await anyio.sleep(0.3)
            assert not b.ordered(orders.JoinAgain)
            memory.away = set()
            await b.until(lambda: b.ordered(orders.JoinAgain))
            assert not a.reports(LeadershipLost)
            assert not a.ordered(orders.StandBack) + b.ordered(orders.StandBack)


@pytest.mark.usefixtures("short_fence")
async def test_a_leader_that_misses_a_witness_and_the_backend_answers_nobody_any_more():
    """The witness may have told another leader that it is free; the nodes here end their workers in time."""
    memory = Memory(ttl_s=0.2)
    async with node(memory, "a") as a, node(memory, "b", begins=False) as b:
        await a.until(lambda: a.reports(LeadershipTaken))
        assert b.peers is not None
        b.peers.report(JOB, JobOpened("b", RULES))
        async with node(memory, "c"):
            await a.until(lambda: len(a.reports(NodeStands)) == 3)
            assert a.peers is not None
            a.peers.record(JOB, msgspec.structs.replace(WITH_BOTH, witnesses=("a", "b", "c")))
            await a.peers.until_all_is_heard()
            memory.away = {"a", "b", "c"}
        await a.until(lambda: a.ordered(orders.StandBack))
        await b.until(lambda: b.ordered(orders.StandBack))
        assert not a.reports(LeadershipLost)
        memory.elect(None)
        memory.away = set()
        await a.until(lambda: a.reports(LeadershipLost))
        await a.until(lambda: len(a.reports(LeadershipTaken)) + len(b.reports(LeadershipTaken)) == 2)


@pytest.mark.usefixtures("short_fence")
async def test_a_leader_that_is_there_and_not_heard_may_replace_a_node_and_one_that_is_not_may_not():
    memory = Memory()
    memory.elect(Leader(1, "z", "127.0.0.1:1", 60.0))
    memory.term = 1
    async with node(memory, "a") as a:
        await a.until(lambda: a.ordered(orders.StandBack))
        memory.elect(None)
        await a.until(lambda: a.reports(LeadershipTaken))


@pytest.mark.usefixtures("short_fence")
async def test_a_node_is_safe_while_the_backend_says_that_nobody_leads(monkeypatch: pytest.MonkeyPatch):
    async def nobody_wins(*_: object) -> None:
        return None

    monkeypatch.setattr(MemoryBackend, "try_to_lead", nobody_wins)
    async with node(Memory(), "a") as a:
        await anyio.sleep(2.5)
        assert not a.ordered(orders.StandBack)


@pytest.mark.usefixtures("short_fence")
async def test_a_change_that_nothing_tells_of_is_found_out(monkeypatch: pytest.MonkeyPatch):
    """The watch is set up, but nothing comes on it."""
    memory = Memory()

    async def once(backend: MemoryBackend) -> AsyncGenerator[Leader | None]:
        yield await backend.leader()
        await anyio.sleep_forever()

    monkeypatch.setattr(MemoryBackend, "leaders", once)
    async with node(memory, "b", begins=False) as b:
        async with node(memory, "a") as a:
            await a.until(lambda: a.reports(LeadershipTaken))
            assert b.peers is not None
            b.peers.report(JOB, JobOpened("b", RULES))
            await a.until(lambda: len(a.reports(NodeStands)) == 2)
        await b.until(lambda: b.reports(LeadershipTaken))


@pytest.mark.usefixtures("short_fence")
async def test_a_node_that_left_a_leader_tells_the_next_one_when():
    memory = Memory()
    async with node(memory, "b", begins=False) as b, node(memory, "c", begins=False) as c:
        async with node(memory, "a") as a:
            await a.until(lambda: a.reports(LeadershipTaken))
            for each in (b, c):
                assert each.peers is not None
                each.peers.report(JOB, JobOpened(each.name, RULES))
            await a.until(lambda: len(a.reports(NodeStands)) == 3)
        await b.until(lambda: b.reports(LeadershipTaken) or c.reports(LeadershipTaken))
        leader = b if b.reports(LeadershipTaken) else c
        await leader.until(lambda: len({each.node for each in leader.reports(NodeStands)}) == 2)  # pyright: ignore
        assert all(0 < each.left_ago_s < LIMIT_S for each in leader.reports(NodeStands))  # pyright: ignore


async def test_a_job_without_any_leader_ends_in_time():
    memory = Memory()
    memory.away = {"a"}
    async with node(memory, "a", join_timeout_s=0.5) as a:
        await a.until(lambda: a.ordered(orders.Conclude))
        (order,) = a.ordered(orders.Conclude)
        assert isinstance(order, orders.Conclude)
        assert "no leader of job job was found for 0.5 s" in order.verdict.reason


async def test_a_node_that_had_stopped_before_its_leader_was_lost_ends_in_time_too():
    """Found by the simulator: it had nothing more to report, and waited indefinitely for its verdict."""
    memory = Memory()
    memory.away = {"a"}
    async with node(memory, "a", join_timeout_s=0.5) as a:
        assert a.peers is not None
        a.peers.report(JOB, NodeStopped("a", all_succeeded=False))
        a.peers.report = lambda job_id, report: None  # pyright: ignore - as its engine, which has nothing to report
        await a.until(lambda: a.ordered(orders.Conclude))


async def test_a_backend_that_proves_its_age_says_that_nobody_trains_and_another_does_not(
    monkeypatch: pytest.MonkeyPatch,
):
    for is_proven in (False, True):
        if is_proven:
            monkeypatch.setattr(MemoryLead, "held_for_s", 1e6, raising=False)
        async with node(Memory(), "a") as a:
            await a.until(lambda: a.reports(LeadershipTaken))
            assert a.reports(LeadershipTaken) == [LeadershipTaken(1, Ledger(), None, not is_proven)]


async def test_a_ledger_that_can_not_be_read_says_nothing():
    memory = Memory()
    memory.state = b"{"
    async with node(memory, "a") as a:
        await a.until(lambda: a.reports(LeadershipTaken))
        (taken,) = a.reports(LeadershipTaken)
        assert isinstance(taken, LeadershipTaken)
        assert taken.ledger == Ledger()


ENDED = Ledger(4, 4, 1, verdict=Verdict(JobState.SUCCEEDED, 0, "all ranks exited with code 0"))


async def test_a_job_that_has_ended_is_not_begun_again_by_a_node_that_missed_its_end_but_by_a_new_process():
    memory = Memory()
    async with node(memory, "b", begins=False) as b:
        async with node(memory, "a") as a:
            await a.until(lambda: a.reports(LeadershipTaken))
            assert a.peers is not None
            assert b.peers is not None
            b.peers.report(JOB, JobOpened("b", RULES))
            await a.until(lambda: len(a.reports(NodeStands)) == 2)
            a.peers.record(JOB, ENDED)
            await a.peers.until_all_is_heard()
        assert msgspec.json.decode(memory.state, type=Ledger) == msgspec.structs.replace(ENDED, is_told=True, told_by=1)
        await b.until(lambda: b.reports(LeadershipTaken))
        (taken,) = b.reports(LeadershipTaken)
        assert isinstance(taken, LeadershipTaken)
        assert taken.ledger.verdict == ENDED.verdict, "it has met a leader, and ends as that one has decided"
    async with node(memory, "c") as c:
        await c.until(lambda: c.reports(LeadershipTaken))
        (taken,) = c.reports(LeadershipTaken)
        assert isinstance(taken, LeadershipTaken)
        assert taken.ledger == Ledger(), "the id is used again"
        assert ENDED.verdict is not None
        assert taken.former == Former(ENDED.verdict, 2), "for nodes that still wait for it; b led last"


async def test_a_node_that_missed_the_end_and_loses_its_lead_again_and_again_begins_nothing_either():
    memory = Memory(ttl_s=2.0)
    async with node(memory, "b") as b:
        await b.until(lambda: b.reports(LeadershipTaken))
        memory.state = msgspec.json.encode(after_all_know(ENDED, 1))
        for times in (2, 3):
            memory.elect(None)
            await b.until(lambda times=times: len(b.reports(LeadershipTaken)) == times)
        for taken in b.reports(LeadershipTaken)[1:]:
            assert isinstance(taken, LeadershipTaken)
            assert (taken.ledger.verdict, taken.former) == (ENDED.verdict, None)


async def test_an_end_that_was_not_told_holds_for_a_new_process_too():
    memory = Memory()
    memory.state = msgspec.json.encode(ENDED)
    async with node(memory, "c") as c:
        await c.until(lambda: c.reports(LeadershipTaken))
        (taken,) = c.reports(LeadershipTaken)
        assert isinstance(taken, LeadershipTaken)
        assert taken.ledger == ENDED


async def test_a_report_that_came_just_before_the_lead_was_lost_ends_no_job():
    """The engine handles it before LeadershipLost, and the coordinator still decides something."""
    memory = Memory(ttl_s=2.0)
    async with node(memory, "a") as a:
        await a.until(lambda: a.reports(LeadershipTaken))
        memory.elect(Leader(2, "z", "127.0.0.1:1", 60.0))
        await a.until(lambda: a.reports(LeadershipLost))
        assert a.peers is not None
        assert not a.peers.leads(JOB)
        before = list(memory.written)
        a.peers.record(JOB, Ledger(5, 5, 1))
        a.peers.send("a", JOB, orders.JoinAgain(5, "a reason"))
        a.peers.send("b", JOB, orders.JoinAgain(5, "a reason"))
        assert memory.written == before
        assert not a.ordered(orders.JoinAgain)


async def test_a_leader_resigns_once_its_ledger_is_kept_and_another_node_leads_at_once():
    memory = Memory()
    async with node(memory, "a") as a:
        await a.until(lambda: a.reports(LeadershipTaken))
        async with node(memory, "b") as b:
            await a.until(lambda: len(a.reports(NodeStands)) == 2)
            assert a.peers is not None
            a.peers.record(JOB, Ledger(4, resigned=("a",)))
            a.peers.send("a", JOB, orders.Resign("it hears too few"))
            await b.until(lambda: b.reports(LeadershipTaken))
            assert b.reports(LeadershipTaken)[0].ledger == Ledger(4, resigned=("a",))  # pyright: ignore
            await b.until(lambda: len(b.reports(NodeStands)) == 2)
            assert a.reports(LeadershipLost) == [LeadershipLost("it hears too few")]
            assert a.ordered(orders.Resign) == [orders.Resign("it hears too few")]
