"""What does a leader keep of its nodes? Their last reports, the journal's copy, and whether their clocks differ."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from supervisor.core.cluster.cluster_messages import NodeLost
from supervisor.core.facts import JobState
from supervisor.ports.questions import NodeEvents, TellUpdate
from tests.queries.shared_job import happened, part, shared_job


def news(
    *sequences: int, gone_through: int = 0, submitted_at_ns: int = 7, sent_at_ns: int = 0, after: int = 0
) -> TellUpdate:
    told = part("n1", 2, 3, submitted_at_ns=submitted_at_ns)
    return TellUpdate(told.part, told.node, happened("n1", *sequences), gone_through, sent_at_ns, after)


async def test_a_clock_that_is_off_is_told_once(tmp_path: Path):
    async with shared_job(tmp_path) as shared:
        now_ns = shared.world.clock.unix_ns()
        shared.view.take_events("j", "n1", news(1, sent_at_ns=now_ns - 5 * 10**9))  # It may have waited for us.
        shared.view.take_events("j", "n1", news(2, sent_at_ns=now_ns - 5 * 10**9))
        shared.view.take_events("j", "n1", news(3, sent_at_ns=now_ns - 5 * 10**9))
        told = [event.reason for event in shared.world.journal.events if event.kind == "clocks_differ"]
        assert told == ["the clock of node n1 is 5.0 s behind this node's, and so are the times of its events"]


async def test_what_has_waited_for_a_leader_that_stood_still_says_nothing_of_the_nodes_clock(tmp_path: Path):
    async with shared_job(tmp_path) as shared:
        now_ns = shared.world.clock.unix_ns()
        shared.view.take_events("j", "n1", news(1, sent_at_ns=now_ns))
        shared.world.clock.at_s += 60.0
        shared.view.take_events("j", "n1", news(2, sent_at_ns=now_ns + 10**9))  # Sent as the leader began to stall.
        shared.view.take_events("j", "n1", news(2, 3, sent_at_ns=now_ns + 5 * 10**9))  # It has got no answer.
        shared.view.take_events("j", "n1", news(4, sent_at_ns=now_ns + 60 * 10**9))
        assert not [event for event in shared.world.journal.events if event.kind == "clocks_differ"]


async def test_a_lost_node_stays_with_its_last_words_also_in_the_journal(tmp_path: Path):
    async with shared_job(tmp_path) as shared:
        await shared.bring_spare()
        shared.view.take_events("j", "n1", news(1))
        shared.world.clock.at_s += 2.0
        await shared.report(NodeLost("n1", "node n1 is lost: silence"))
        node = {each.name: each for each in shared.view.merged("j").nodes}["n1"]
        assert (node.state, node.reason, node.ranks) == ("lost", "node n1 is lost: silence", (2, 3))
        assert node.heard_at_ns == 100 * 10**9
        assert node.lost_at_ns == 102 * 10**9
        assert [each.state for each in shared.view.nodes("j") if each.name == "n1"] == ["lost"]
        shared.world.job_service.stop("j", reason="enough", signal=0)
        await shared.world.settle()
        await shared.world.pass_deadlines()
        saved = shared.world.journal.reports[-1]
        assert saved.state is JobState.STOPPED
        assert {each.name: each.state for each in saved.nodes}["n1"] == "lost"


async def test_a_node_that_nobody_heard_before_it_was_lost_is_named(tmp_path: Path):
    async with shared_job(tmp_path) as shared:
        await shared.bring_spare()
        await shared.report(NodeLost("n1", "node n1 is lost: silence"))
        node = {each.name: each for each in shared.view.merged("j").nodes}["n1"]
        assert (node.state, node.reason, node.ranks) == ("lost", "node n1 is lost: silence", ())


async def test_a_few_nodes_keep_the_events_of_their_leader_and_bring_them_to_the_next(tmp_path: Path):
    async with shared_job(tmp_path) as shared:
        own = shared.view.own_events("j", "n1", news(1))
        assert [event.kind for event in own.events][:1] == ["job_submitted"]
        for number in range(2, 12):
            shared.view.own_events("j", f"n{number}", news(1))
        assert not shared.view.own_events("j", "n11", news(1)).events
        await shared.report(NodeLost("n1", "node n1 is lost: silence"))
        assert shared.view.own_events("j", "n11", news(1)).events
        came_ns = shared.world.clock.unix_ns()
        earlier = NodeEvents("n9", 7, happened("n9", 1, 4))
        again = replace(own, events=happened("n0", 90))
        shared.view.take_events("j", "n1", replace(news(1, sent_at_ns=came_ns), others=(earlier, again)))
        shared.view.take_events("j", "n2", replace(news(1, sent_at_ns=came_ns), others=(earlier,)))
        told = [event for event in shared.world.journal.events if event.node == "n9"]
        assert [event.reason for event in told] == ["n9 1", "n9 4"]
        assert dict(told[0].details)["told_at_ns"] == str(came_ns)
        assert not [event for event in shared.world.journal.events if event.reason == "n0 90"], "it knows its own"


async def test_the_events_of_a_leader_join_the_history_of_this_node(tmp_path: Path):
    async with shared_job(tmp_path, leads=False) as shared:
        shared.view.record("j", NodeEvents("n9", 7, happened("n9", 1, 2)))
        shared.view.record("j", NodeEvents("n9", 7, happened("n9", 1, 2, 3)))
        shared.view.record("other", NodeEvents("n9", 7, happened("n9", 1)))
        assert [event.reason for event in shared.world.journal.events if event.node == "n9"] == ["n9 1", "n9 2", "n9 3"]


async def test_without_a_leader_the_last_whole_is_shown(tmp_path: Path):
    async with shared_job(tmp_path, leads=False) as shared:
        own, nodes = shared.view.last_whole("j")
        assert [node.name for node in nodes] == ["n0"]
        assert [rank.node for rank in own.ranks] == ["n0", "n0"]
        assert replace(own, ranks=()).job_id == "j"
