"""Do the leader and any other node give the same answers, and what happens if a node does not answer?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from supervisor.core.cluster.cluster_messages import NodeLost
from supervisor.core.facts import Evidence, StackGroup
from supervisor.edges.operators.event_streams import followed_events
from supervisor.errors import NoAnswerError, NotFoundError
from supervisor.ports.questions import (
    LEADER,
    Answer,
    Done,
    Events,
    Part,
    Question,
    ReadEvents,
    SetCordon,
    ShowPart,
    ShowStacks,
    ShowWhole,
    Stacks,
    TellUpdate,
    UpdateTaken,
    Whole,
)
from supervisor.ports.reports import JobNodeReport, NodeReport
from supervisor.queries import cluster_job_service
from tests.queries.shared_job import History, happened, part, shared_job
from tests.settling import settled


def spare(question: Question) -> Answer:
    match question:
        case ShowPart():
            return part("n1")
        case SetCordon(cordoned, reason, leaves):
            return Done(NodeReport("n1", "cordoned" if cordoned else "ready", reason, leaves=("j",) if leaves else ()))
        case ShowStacks():
            return Stacks(Evidence((StackGroup((2, 3), "main"),), source="py-spy"))
        case _:
            raise AssertionError(question)


def always(answer: Answer) -> Callable[[Question], Answer]:
    return lambda _: answer


async def test_the_leader_asks_its_nodes_and_shows_one_that_is_silent_as_it_was(tmp_path: Path):
    async with shared_job(tmp_path) as shared:
        await shared.bring_spare()
        shared.node_requests.answers["n1"] = spare
        report = await shared.job_service.look("j")
        assert report is not None
        assert [(node.name, node.state, node.heard_at_ns) for node in report.nodes] == [
            ("n0", "active", None), ("n1", "spare", None),
        ]  # fmt: skip
        shared.node_requests.answers.clear()
        shared.world.clock.at_s += 3.2
        report = await shared.job_service.look("j")
        assert report is not None
        assert report.nodes[1].heard_at_ns == 100 * 10**9
        assert [each.reason for each in await shared.job_service.nodes()] == ["", "no answer for 3.2 s"]
        assert [each.job_id for each in await shared.job_service.look_at_all()] == ["j"]


async def test_a_node_that_has_not_been_heard_since_the_leader_came_back_is_not_passed_over(tmp_path: Path):
    async with shared_job(tmp_path) as shared:
        await shared.bring_spare()
        report = await shared.job_service.look("j")
        assert report is not None
        assert [(node.name, node.heard_at_ns) for node in report.nodes] == [("n0", None), ("n1", 100 * 10**9)]
        assert [(each.name, each.state) for each in await shared.job_service.nodes()] == [
            ("n0", "ready"),
            ("n1", "unknown"),
        ]
        shared.node_requests.answers["n1"] = spare
        report = await shared.job_service.look("j")
        assert report is not None
        assert [node.heard_at_ns for node in report.nodes] == [None, None]
        assert [each.state for each in await shared.job_service.nodes()] == ["ready", "ready"]


async def test_stacks_of_a_node_that_has_not_been_heard_yet_are_said_to_be_missing(tmp_path: Path):
    async with shared_job(tmp_path, leads=False) as shared:
        told = part("leader", 0, 1)
        nodes = (JobNodeReport("leader", "active"), JobNodeReport("n1", "active", 1, heard_at_ns=1))
        shared.node_requests.answers[LEADER] = always(Whole(replace(told.part, nodes=nodes), (told.node,)))
        shared.node_requests.answers["leader"] = always(
            Stacks(Evidence((StackGroup((0, 1), "main"),), source="py-spy"))
        )
        evidence = await shared.job_service.stacks("j", None)
        assert ([group.ranks for group in evidence.groups], evidence.notes) == ([(0, 1)], ("no answer of n1 yet",))
        with pytest.raises(NoAnswerError, match="stacks of rank 3: no answer of n1 yet; try again in a moment"):
            await shared.job_service.stacks("j", 3)
        assert not (await shared.job_service.stacks("j", 1)).notes


async def test_others_show_what_the_leader_says_under_their_own_supervisor(tmp_path: Path):
    async with shared_job(tmp_path, leads=False) as shared:
        told = part("leader", 0, 1)
        shared.node_requests.answers[LEADER] = always(Whole(told.part, (told.node,)))
        report = await shared.job_service.look("j")
        assert report is not None
        own = shared.world.job_service.job("j")
        assert own is not None
        assert (report.supervisor_pid, report.log_dir) == (own.supervisor_pid, own.log_dir)
        assert [rank.node for rank in report.ranks] == ["leader", "leader"]
        assert [each.name for each in await shared.job_service.nodes()] == ["leader", "n0"]
        shared.node_requests.answers.clear()
        report = await shared.job_service.look("j")
        assert report is not None
        assert "no answer within 2 s; the other nodes are shown as they were" in report.reason
        assert [rank.node for rank in report.ranks] == ["n0", "n0"]


async def test_stacks_are_collected_from_all_nodes(tmp_path: Path):
    async with shared_job(tmp_path, leads=False) as shared:
        told = part("n1", 2, 3)
        own = await shared.job_service.look("j")
        assert own is not None
        whole = Whole(told.part, (told.node,))
        shared.node_requests.answers[LEADER] = always(whole)
        shared.node_requests.answers["n1"] = spare
        evidence = await shared.job_service.stacks("j", None)
        assert [group.ranks for group in evidence.groups] == [(2, 3)]
        with pytest.raises(NotFoundError, match="job j has ranks 2 to 3"):
            await shared.job_service.stacks("j", 9)
        del shared.node_requests.answers["n1"]
        evidence = await shared.job_service.stacks("j", 3)
        assert evidence.notes == ("rank 3 of node n1: cannot ask node n1: no answer within 3.5 s",)


async def test_a_node_is_cordoned_from_any_other(tmp_path: Path):
    async with shared_job(tmp_path) as shared:
        await shared.bring_spare()
        shared.node_requests.answers["n1"] = spare
        assert await shared.job_service.set_cordon("n1", cordoned=True, reason="why") == NodeReport(
            "n1", "cordoned", "why"
        )
        own = await shared.job_service.set_cordon("", cordoned=True, reason="own")
        assert (own.reason, own.cordon_ends) == ("own", False)
        await shared.world.settle()
        assert "node n0 takes part in no later cycle: own" in [each.reason for each in shared.world.journal.events]
        with pytest.raises(NotFoundError, match=r"cannot uncordon node n9: it is not among .* n0, n1"):
            await shared.job_service.set_cordon("n9", cordoned=False)
        await shared.report(NodeLost("n1", "node n1 is lost: silence"))
        with pytest.raises(NotFoundError, match="cannot uncordon node n1: node n1 is lost: silence"):
            await shared.job_service.set_cordon("n1", cordoned=False)


async def test_a_node_that_has_left_is_listed_as_such_and_not_as_lost(tmp_path: Path):
    async with shared_job(tmp_path, leads=False) as shared:
        told = part("n1", 2, 3)
        gone = JobNodeReport("n1", "left", None, "by kim")
        lost = NodeReport("n1", "lost", "the other side has closed the connection", ("j",))
        whole = Whole(replace(told.part, nodes=(*told.part.nodes, gone)), (told.node, lost))
        shared.node_requests.answers[LEADER] = always(whole)
        other = {each.name: each for each in await shared.job_service.nodes()}["n1"]
        assert (other.name, other.state, other.reason, other.job_ids) == ("n1", "left", "by kim", ())
        with pytest.raises(NotFoundError, match="it has left the job; type holdfast uncordon on that node"):
            await shared.job_service.set_cordon("n1", cordoned=False)


async def test_a_node_is_asked_to_leave_from_any_other(tmp_path: Path):
    async with shared_job(tmp_path) as shared:
        await shared.bring_spare()
        shared.node_requests.answers["n1"] = spare
        assert (await shared.job_service.set_cordon("n1", cordoned=True, reason="why", leaves=True)).leaves == ("j",)
        done = await shared.job_service.answer("j", "n1", SetCordon(cordoned=True, reason="by kim", leaves=True))
        assert isinstance(done, Done)
        assert (done.node.name, done.node.state, done.node.leaves) == ("n0", "cordoned", ("j",))
        await shared.world.settle()
        kinds = {each.kind: each.reason for each in shared.world.journal.events}
        assert kinds["leave_requested"] == "by kim"
        assert kinds["leave_refused"].startswith("cannot take node n0 out of job j: it leads the job")


async def test_a_leader_answers_its_nodes(tmp_path: Path):
    async with shared_job(tmp_path) as shared:
        await shared.bring_spare()
        told = part("n1")
        answer = await shared.job_service.answer("j", "n1", TellUpdate(told.part, told.node, happened("n1", 1)))
        assert isinstance(answer, UpdateTaken)
        assert answer.through == 1
        assert isinstance(await shared.job_service.answer("j", "n1", ShowPart()), Part)
        whole = await shared.job_service.answer("j", "n1", ShowWhole())
        assert isinstance(whole, Whole)
        assert [node.name for node in whole.job.nodes] == ["n0", "n1"]
        found = await shared.job_service.answer("j", "n1", ReadEvents(0))
        assert isinstance(found, Events)
        last = found.events[-1].sequence
        assert (found.events[-1].reason, found.is_last) == ("n1 1", False)
        assert await shared.job_service.answer("j", "n1", ReadEvents(last)) == Events(())
        with pytest.raises(NotFoundError, match="job x is not known here"):
            await shared.job_service.answer("x", "n1", ShowPart())


async def test_one_that_waits_for_events_is_answered_when_one_happens(tmp_path: Path):
    async with shared_job(tmp_path) as shared:
        answers: list[Answer] = []

        async def wait() -> None:
            last = shared.world.journal.events[-1].sequence
            answers.append(await shared.job_service.answer("j", "n1", ReadEvents(last, wait_s=30.0)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await settled()
            told = part("n1")
            await shared.job_service.answer("j", "n1", TellUpdate(told.part, told.node, happened("n1", 1)))
        assert isinstance(answers[0], Events)
        assert [event.reason for event in answers[0].events] == ["n1 1"]


async def test_one_that_waits_for_events_is_refused_once_this_node_leads_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Else it would ask the next leader, which numbers the events itself, for what follows by this node's numbers."""
    async with shared_job(tmp_path) as shared, anyio.create_task_group() as tasks:
        last = shared.world.journal.events[-1].sequence

        def leads(_: str) -> bool:
            return False

        async def lose_the_lead() -> None:
            await settled()
            monkeypatch.setattr(shared.node_requests, "leads", leads)

        tasks.start_soon(lose_the_lead)
        with pytest.raises(NoAnswerError, match="this node does not lead it"):
            await shared.job_service.answer("j", "n1", ReadEvents(last, wait_s=0.3))


async def test_events_are_read_from_the_leader(tmp_path: Path):
    async with shared_job(tmp_path, leads=False) as shared:
        pages = [Events(happened("n1", 1, 2)), Events(happened("n1", 3)), Events((), is_last=True)]
        shared.node_requests.answers[LEADER] = lambda _: pages.pop(0)
        events = shared.job_service.events_elsewhere("j", after_sequence=0, follow=True)
        assert events is not None
        assert [event.sequence async for event in events] == [1, 2, 3]
        asked = [each.after_sequence for _, each in shared.node_requests.asked if isinstance(each, ReadEvents)]
        assert asked == [0, 2, 3]
        shared.node_requests.answers.clear()
        events = shared.job_service.events_elsewhere("j", after_sequence=0, follow=False)
        assert events is not None
        with pytest.raises(NoAnswerError):
            await anext(events)
    async with shared_job(tmp_path) as shared:
        assert shared.job_service.events_elsewhere("j", after_sequence=0, follow=False) is None


@pytest.mark.parametrize("has_concluded", [False, True])
async def test_the_end_of_the_job_here_is_followed_though_the_leader_does_not_show_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_concluded: bool
):
    """The leader has ended before, or answers no more."""
    monkeypatch.setattr(cluster_job_service, "LAST_EVENTS_S", 0.01)
    kinds, notes = list[str](), list[str]()
    async with shared_job(tmp_path, leads=False) as shared, anyio.create_task_group() as tasks:

        async def ask(*_: object, **__: object) -> Answer:
            if not has_concluded:
                await anyio.sleep_forever()
            return Events((), is_last=True)

        monkeypatch.setattr(shared.node_requests, "ask", ask)

        async def note(text: str) -> None:
            notes.append(text)

        async def follow() -> None:
            history, limiter = History(shared.world.journal), anyio.CapacityLimiter(1)
            events = followed_events(shared.job_service, history, "j", after_sequence=0, limiter=limiter, note=note)
            with anyio.fail_after(cluster_job_service.EVENTS_WAIT_S / 2):
                async for event in events:
                    kinds.append(event.kind)

        tasks.start_soon(follow)
        await settled()
        shared.world.job_service.stop("j", reason="enough", signal=0)
        await shared.world.settle()
        await shared.world.pass_deadlines()
    assert (kinds, notes) == (shared.world.journal.kinds(), [])
    assert kinds[-1] == "job_stopped"


async def test_what_a_restart_would_wait_for_is_said_beside_the_state(tmp_path: Path):
    for leads in (True, False):
        async with shared_job(tmp_path, leads=leads) as shared:
            shared.node_requests.away = "the rendezvous backend has not answered for 7 s, and a restart waits for it"
            report = await shared.job_service.look("j")
            assert report is not None
            assert shared.node_requests.away in report.reason
