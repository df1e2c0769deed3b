"""What does a leader keep of its nodes? Their events once and in order, their last reports, and the journal's copy."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from supervisor.core.cluster.messages import NodeLost
from supervisor.core.facts import JobState
from supervisor.ports.questions import TellNews
from tests.queries.colleagues import Shared, happened, part, shared_job


def news(
    *sequences: int, gone_through: int = 0, submitted_at_ns: int = 7, sent_at_ns: int = 0, after: int = 0
) -> TellNews:
    told = part("n1", 2, 3, submitted_at_ns=submitted_at_ns)
    return TellNews(told.part, told.node, happened("n1", *sequences), gone_through, sent_at_ns, after)


def of_n1(shared: Shared) -> list[str]:
    return [event.reason for event in shared.world.journal.events if event.node == "n1"]


async def test_events_of_a_node_are_recorded_once_and_in_its_order_whatever_is_told_again(tmp_path: Path):
    async with shared_job(tmp_path) as shared:
        take = shared.view.take_news
        assert take("j", "n1", news(1, 2)) == 2
        assert take("j", "n1", news(1, 2, 3)) == 3
        assert take("j", "n1", news(5)) == 3  # the node must send event 4 first
        assert take("j", "n1", news(4, 5)) == 5
        assert of_n1(shared) == [f"n1 {number}" for number in (1, 2, 3, 4, 5)]
        assert take("j", "n1", news(1, submitted_at_ns=8)) == 1  # another process of that name counts from 1 again
        sequences = [event.sequence for event in shared.world.journal.events]
        assert sequences == list(range(1, len(sequences) + 1))


async def test_a_node_that_has_led_for_a_while_has_events_of_others_between_its_own(tmp_path: Path):
    async with shared_job(tmp_path) as shared:
        take = shared.view.take_news
        assert take("j", "n1", news(9, after=7)) == 0  # It has told another leader of those before.
        assert take("j", "n1", news(1, 2, 5, 7)) == 7
        assert take("j", "n1", news(9, 12, after=7)) == 12
        assert take("j", "n1", news(20, after=14)) == 12  # The node is to tell event 14 first.
        assert of_n1(shared) == [f"n1 {number}" for number in (1, 2, 5, 7, 9, 12)]
        assert not [event for event in shared.world.journal.events if event.kind == "events_missing"]


async def test_what_a_node_had_to_give_up_is_counted_and_told(tmp_path: Path):
    async with shared_job(tmp_path) as shared:
        assert shared.view.take_news("j", "n1", news(4, 5, gone_through=3)) == 5
        missing = [event for event in shared.world.journal.events if event.kind == "events_missing"]
        assert [event.reason for event in missing] == [
            "3 events of node n1 did not arrive in time; see its own journal"
        ]


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 5)), max_size=12))
def test_any_order_of_messages_records_no_event_twice_and_leaves_no_gap(told: list[tuple[int, int]]):
    import anyio

    async def check() -> None:
        async with shared_job(Path("/nowhere")) as shared:
            for first, count in told:
                shared.view.take_news("j", "n1", news(*range(first, first + count)))
            recorded = [int(reason.split()[1]) for reason in of_n1(shared)]
            assert recorded == list(range(1, len(recorded) + 1))

    anyio.run(check)


async def test_a_clock_that_is_off_is_told_once(tmp_path: Path):
    async with shared_job(tmp_path) as shared:
        now_ns = shared.world.clock.unix_ns()
        shared.view.take_news("j", "n1", news(1, sent_at_ns=now_ns - 5 * 10**9))  # It may have waited for us.
        shared.view.take_news("j", "n1", news(2, sent_at_ns=now_ns - 5 * 10**9))
        shared.view.take_news("j", "n1", news(3, sent_at_ns=now_ns - 5 * 10**9))
        told = [event.reason for event in shared.world.journal.events if event.kind == "clocks_differ"]
        assert told == ["the clock of node n1 is 5.0 s behind this node's, and so are the times of its events"]


async def test_what_has_waited_for_a_leader_that_stood_still_says_nothing_of_the_nodes_clock(tmp_path: Path):
    async with shared_job(tmp_path) as shared:
        now_ns = shared.world.clock.unix_ns()
        shared.view.take_news("j", "n1", news(1, sent_at_ns=now_ns))
        shared.world.clock.at_s += 60.0
        shared.view.take_news("j", "n1", news(2, sent_at_ns=now_ns + 10**9))  # Said as the leader began to stand still.
        shared.view.take_news("j", "n1", news(2, 3, sent_at_ns=now_ns + 5 * 10**9))  # It has got no answer.
        shared.view.take_news("j", "n1", news(4, sent_at_ns=now_ns + 60 * 10**9))
        assert not [event for event in shared.world.journal.events if event.kind == "clocks_differ"]


async def test_a_lost_node_stays_with_its_last_words_also_in_the_journal(tmp_path: Path):
    async with shared_job(tmp_path) as shared:
        await shared.bring_spare()
        shared.view.take_news("j", "n1", news(1))
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


async def test_without_a_leader_the_last_whole_is_shown(tmp_path: Path):
    async with shared_job(tmp_path, leads=False) as shared:
        own, nodes = shared.view.last_whole("j")
        assert [node.name for node in nodes] == ["n0"]
        assert [rank.node for rank in own.ranks] == ["n0", "n0"]
        assert replace(own, ranks=()).job_id == "j"
