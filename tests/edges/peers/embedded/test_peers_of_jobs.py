"""Has each job of a supervisor its own connections to other nodes, and does their failure harm no other job?"""

from __future__ import annotations

import errno
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint
from msgspec.structs import replace

from supervisor.config.job_spec import KEPT_NODES_MAX, JobSpec, Nodes
from supervisor.core import orders
from supervisor.core.cluster.cluster_messages import Event, LeadershipLost, NodeDown, NodeJoined, Reported
from supervisor.core.facts import JobState
from supervisor.core.leader_ledger import Ledger
from supervisor.core.node.node_messages import FenceMoved, JobAbandoned, Ordered
from supervisor.core.session_state import JobSessions
from supervisor.edges.machine.own_process.kernel_error_remedies import NoThreadError
from supervisor.edges.peers.embedded import peers_of_jobs
from supervisor.edges.peers.embedded.peers_of_jobs import FromPeers, Opener, PeersOfJobs, open_peers_of_jobs
from supervisor.edges.peers.stream.session_store import JobPeers, SessionStore
from supervisor.errors import ConfigurationError, NoAnswerError
from supervisor.ports.edges import Post
from supervisor.ports.questions import LEADER, Answer, Part, Question, Reply, ShowPart, TakeQuestion
from supervisor.ports.reports import JobReport, NodeReport
from tests.settling import settled

LIMIT_S = 10.0
WHY = "a fault of the supervisor broke the connection to the other nodes: RuntimeError: a planted fault"
NODES = Nodes(2, 2, "127.0.0.1", 1, "a-in-the-job")


def shared(job_id: str) -> JobSpec:
    return JobSpec(job_id, ("t.py",), nodes=NODES)


class OneJob:
    """See questions.PeersAndNodeRequests: the test sets what comes, and sent messages are kept."""

    def __init__(self, post: Post, take_question: TakeQuestion, *, leads: bool) -> None:
        self.post = post
        self.take_question = take_question
        self.said: list[object] = []
        self.fails = anyio.Event()
        self.quiet = anyio.Event()
        self.quiet.set()
        self._leads = leads

    @property
    def node_requests(self) -> OneJob:
        return self

    def leads(self, job_id: str) -> bool:
        return self._leads

    def outage(self, job_id: str) -> str:
        return "it is away"

    def send(self, node: str, job_id: str, order: orders.Order) -> None:
        self.said.append((node, order))

    def report(self, job_id: str, report: Event) -> None:
        self.said.append(report)

    def record(self, job_id: str, ledger: Ledger) -> None:
        self.said.append(ledger)

    async def ask(self, job_id: str, to: str, question: Question, *, timeout_s: float) -> Answer:
        answers: list[Answer] = []
        self.take_question(job_id, to, question, answers.append)
        return answers[0]

    async def until_quiet(self) -> None:
        await self.quiet.wait()

    def session_state(self, *, whole: bool = True) -> JobSessions:
        return JobSessions(leads=self._leads, is_whole=whole)


class News:
    """See questions.LastEvents."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.forgotten: list[str] = []
        self.goes_on = anyio.Event()
        self.goes_on.set()

    async def tell_last(self, job_id: str) -> None:
        await self.goes_on.wait()
        self.told.append(job_id)

    def forget(self, job_id: str) -> None:
        self.forgotten.append(job_id)


class Rig:
    """Connections to other nodes that open, fail and end as a test requests."""

    def __init__(self) -> None:
        self.posted: list[FromPeers] = []
        self.jobs: dict[str, OneJob] = {}
        self.refusals: dict[str, Exception] = {}
        self.holds: dict[str, anyio.Event] = {}  # connections that take time to open
        self.parted: list[str] = []
        self.session_stores: dict[str, SessionStore] = {}
        self.parting = anyio.Event()
        self.parting.set()
        self.asked: list[tuple[str, str]] = []
        self.news = News()

    def take_question(self, job_id: str, by: str, question: Question, reply: Reply) -> None:
        self.asked.append((job_id, by))
        reply(Part(JobReport(job_id, JobState.RUNNING, 1), NodeReport("a", "ready")))

    async def joining(self, spec: JobSpec, nodes: Nodes, session_store: SessionStore) -> tuple[JobSpec, Opener]:
        self.session_stores[spec.job_id] = session_store
        if spec.job_id in self.holds:
            await self.holds[spec.job_id].wait()
        return replace(spec, master_addr="10.0.0.7"), partial(self._open, spec.job_id)

    @asynccontextmanager
    async def _open(self, job_id: str, post: Post, take_question: TakeQuestion) -> AsyncGenerator[JobPeers]:
        async with anyio.create_task_group() as tasks:
            if job_id in self.refusals:
                raise self.refusals[job_id]
            way = self.jobs[job_id] = OneJob(post, take_question, leads=job_id == "led")

            async def fail() -> None:
                await way.fails.wait()
                raise RuntimeError("a planted fault")

            tasks.start_soon(fail)
            yield way
            await self.parting.wait()
            self.parted.append(job_id)
            tasks.cancel_scope.cancel()

    def opened(self) -> AbstractAsyncContextManager[PeersOfJobs]:
        return open_peers_of_jobs(
            self.posted.append,
            self.take_question,
            self.news,
            state_dir=Path("unused"),
            joining=self.joining,
        )

    async def until_posted(self, event: FromPeers) -> None:
        with anyio.fail_after(LIMIT_S):
            while event not in self.posted:
                await checkpoint()


async def begun(peers: PeersOfJobs, *job_ids: str) -> None:
    for job_id in job_ids:
        await peers.open(shared(job_id), None)
        peers.begin(job_id)


async def test_each_job_has_its_own_way_and_jobs_of_one_node_have_none():
    rig = Rig()
    async with rig.opened() as peers:
        assert (await peers.open(shared("led"), None)).master_addr == "10.0.0.7"
        await begun(peers, "followed")
        assert (peers.leads("led"), peers.leads("followed"), peers.leads("alone")) == (True, False, True)
        peers.report("followed", NodeJoined("a-in-the-job", -1))
        peers.send("b", "led", orders.JoinAgain(1, "why"))
        peers.report("alone", NodeDown("a", 0))
        assert rig.jobs["followed"].said == [NodeJoined("a-in-the-job", -1)]
        assert rig.jobs["led"].said == [("b", orders.JoinAgain(1, "why"))]
        assert rig.posted == [Reported("alone", NodeDown("a", 0))]
    assert sorted(rig.parted) == ["followed", "led"]


async def test_what_comes_before_the_engine_knows_the_job_waits_for_it():
    rig = Rig()
    async with rig.opened() as peers:
        await peers.open(shared("led"), None)
        rig.jobs["led"].post(Reported("led", NodeJoined("b", -1)))
        rig.jobs["led"].post(FenceMoved("led", 5.0))
        assert rig.posted == []
        peers.begin("led")
        rig.jobs["led"].post(Reported("led", NodeDown("b", 0)))
        assert rig.posted == [
            Reported("led", NodeJoined("b", -1)), FenceMoved("led", 5.0), Reported("led", NodeDown("b", 0)),
        ]  # fmt: skip


async def test_a_way_that_fails_ends_its_job_alone():
    rig = Rig()
    async with rig.opened() as peers:
        await begun(peers, "led", "followed")
        rig.jobs["led"].fails.set()
        await rig.until_posted(JobAbandoned("led", WHY))
        assert not peers.leads("led")  # no coordinator of its own starts beside the other nodes'
        peers.report("led", NodeDown("a", 0))
        peers.report("followed", NodeDown("a", 0))
        rig.jobs["followed"].post(Ordered("followed", orders.JoinAgain(1, "why")))
        peers.close("led")
        await rig.until_posted(Reported("led", LeadershipLost("the job has ended on this node")))
        assert rig.posted[1] == Ordered("followed", orders.JoinAgain(1, "why"))
        assert rig.jobs["followed"].said == [NodeDown("a", 0)]


async def test_a_way_that_is_slow_to_open_or_refused_keeps_no_other_job_waiting():
    rig = Rig()
    rig.holds["slow"] = anyio.Event()
    rig.refusals = {"wrong": ConfigurationError("cannot use the token file"), "closed": PermissionError(13, "Denied")}
    async with rig.opened() as peers, anyio.create_task_group() as tasks:
        tasks.start_soon(begun, peers, "slow")
        await settled()
        with anyio.fail_after(LIMIT_S):
            with pytest.raises(ConfigurationError, match="cannot use the token file"):
                await peers.open(shared("wrong"), None)
            with pytest.raises(ConfigurationError, match=r"at 127\.0\.0\.1:1: denied; check --rdzv-endpoint"):
                await peers.open(shared("closed"), None)
            await begun(peers, "led")
        assert set(rig.jobs) == {"led"}
        rig.holds["slow"].set()
    assert sorted(rig.parted) == ["led", "slow"]


async def test_an_id_is_used_again_once_the_last_words_of_its_job_have_gone_out():
    rig = Rig()
    async with rig.opened() as peers, anyio.create_task_group() as tasks:
        await begun(peers, "led")
        first = rig.jobs["led"]
        rig.parting = anyio.Event()
        peers.close("led")
        peers.close("alone")
        tasks.start_soon(begun, peers, "led")
        await settled()
        assert rig.jobs["led"] is first
        rig.parting.set()
        await settled()
        assert rig.jobs["led"] is not first
        assert (rig.parted, rig.news.forgotten) == (["led"], ["led"])


async def test_questions_of_every_job_come_to_one_counter():
    rig = Rig()
    async with rig.opened() as peers:
        await begun(peers, "led", "followed")
        await peers.ask("led", "b", ShowPart(), timeout_s=1.0)
        await peers.ask("followed", LEADER, ShowPart(), timeout_s=1.0)
        assert rig.asked == [("led", "b"), ("followed", LEADER)]
        with pytest.raises(NoAnswerError, match="cannot ask the other nodes of job gone: it has ended on this node"):
            await peers.ask("gone", LEADER, ShowPart(), timeout_s=1.0)
        rig.jobs["led"].fails.set()
        await rig.until_posted(JobAbandoned("led", WHY))
        with pytest.raises(
            NoAnswerError, match="cannot ask the other nodes of job led: the connection to them is lost"
        ):
            await peers.ask("led", "b", ShowPart(), timeout_s=1.0)


async def test_a_way_that_another_supervisor_has_opened_is_gone_on_with():
    rig = Rig()
    kept = JobSessions(leads=True, gone=("before",))
    asked: list[str] = []

    def keep(job_id: str) -> bool:
        asked.append(job_id)
        return True

    async with rig.opened() as peers:
        await peers.reopen(shared("led"), kept, keep)
        session_store = rig.session_stores["led"]
        assert session_store.kept == kept
        assert session_store.keep is not None
        assert not session_store.keep()  # the engine does not know the job yet, and could not keep anything of it
        assert asked == []
        peers.begin("led")
        assert session_store.keep()
        assert asked == ["led"]
        assert peers.session_state("led", whole=False) == JobSessions(leads=True, is_whole=False)
        assert peers.session_state("alone") is None


async def test_nothing_waits_to_be_kept_where_no_supervisor_comes_back_and_a_leader_of_many_does_not():
    rig = Rig()
    async with rig.opened() as peers:
        await peers.open(shared("led"), None)
        assert rig.session_stores["led"].keep is None
        for job_id, leads in (("led", True), ("followed", False)):
            peers.close(job_id)
            spec = replace(shared(job_id), nodes=replace(NODES, max_nodes=KEPT_NODES_MAX + 1))
            many = await peers.open(spec, lambda _: True)
            assert many.nodes is not None
            assert (many.nodes.leads, many.may_come_back) == (leads, not leads)


@pytest.mark.parametrize("kept", [JobSessions(leads=True), None])
async def test_a_way_that_can_t_be_opened_again_ends_the_job_and_says_why(kept: JobSessions | None):
    rig = Rig()
    rig.refusals = {"led": ConfigurationError("something else listens there")}
    async with rig.opened() as peers:
        await peers.reopen(shared("led"), kept, None)
        assert not peers.leads("led")
        assert rig.posted == []
        peers.begin("led")
        (abandoned,) = rig.posted
        assert isinstance(abandoned, JobAbandoned)
        assert "cannot meet the other nodes of the job again" in abandoned.reason
        assert ("something else listens there" in abandoned.reason) is (kept is not None)
        peers.close("led")
        await rig.until_posted(Reported("led", LeadershipLost("the job has ended on this node")))


@pytest.mark.parametrize(
    "refusal", [OSError(errno.EMFILE, "no descriptor"), NoThreadError(RuntimeError("can't start new thread"))]
)
async def test_a_way_that_lacks_a_descriptor_or_a_thread_is_opened_once_there_is_one(
    refusal: OSError, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    rig = Rig()
    rig.refusals = {"led": refusal}
    pauses: list[float] = []

    async def pause(for_s: float, *, why: str) -> None:
        del why
        pauses.append(for_s)
        if len(pauses) == 2:
            rig.refusals.clear()

    monkeypatch.setattr(peers_of_jobs, "pause", pause)
    async with rig.opened() as peers:
        await peers.reopen(shared("led"), JobSessions(leads=True), None)
        assert peers.leads("led")
        assert len(pauses) == 2
        peers.begin("led")
        assert rig.posted == []
    (told,) = (each.getMessage() for each in caplog.records)
    assert "job led waits to meet its other nodes again" in told


async def test_the_last_news_of_a_job_that_has_ended_are_told_before_its_way_is_closed():
    rig = Rig()
    rig.news.goes_on = anyio.Event()
    async with rig.opened() as peers:
        await begun(peers, "a", "b")
        peers.close("a")
        await settled()
        assert rig.parted == []
        rig.news.goes_on.set()
        with anyio.fail_after(LIMIT_S):
            await peers.until_closed("a")
            await peers.until_closed("b")  # it has not ended
        assert rig.parted == ["a"]
    assert rig.news.told == ["a"], "the other job goes on, with another supervisor"


async def test_questions_about_a_job_that_has_ended_are_answered_before_its_way_is_closed():
    rig = Rig()
    async with rig.opened() as peers:
        await begun(peers, "a")
        rig.jobs["a"].quiet = anyio.Event()
        peers.close("a")
        await settled()
        assert (rig.news.told, rig.parted) == (["a"], [])
        rig.jobs["a"].quiet.set()
        with anyio.fail_after(LIMIT_S):
            await peers.until_closed("a")


async def test_news_that_nobody_takes_do_not_hold_up_the_end_for_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(peers_of_jobs, "OTHERS_LAST_EVENTS_S", 0.01)
    rig = Rig()
    rig.news.goes_on = anyio.Event()
    async with rig.opened() as peers:
        await begun(peers, "a")
        peers.close("a")
        with anyio.fail_after(LIMIT_S):
            await peers.until_closed("a")
