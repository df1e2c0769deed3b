"""Do the events of a lost leader reach the next one from a node that has kept them, each once and in order?"""

from __future__ import annotations

import msgspec

from supervisor.engine import leaders_events
from supervisor.engine.unsent_events import UnsentOfJob
from supervisor.ports.questions import NodeEvents, TellUpdate
from tests.queries.shared_job import happened, part

OWN = NodeEvents("n0", 7)


def kept(*sequences: int) -> UnsentOfJob:
    news = UnsentOfJob()
    news.events.extend(happened("n0", *sequences))
    return news


def told(news: UnsentOfJob) -> TellUpdate:
    said = part("n1", 2, 3)
    return TellUpdate(said.part, said.node, (), 0, 0, 0, *leaders_events.has_through(news))


def sequences(part: NodeEvents) -> list[int]:
    return [event.sequence for event in part.events]


def test_a_leader_tells_what_the_node_does_not_have_and_begins_again_with_one_that_has_another_leaders():
    leader, node = kept(1, 2, 5), UnsentOfJob()
    first = leaders_events.own_next(leader, OWN, told(node))
    assert (sequences(first), first.after) == ([1, 2, 5], 0)
    leaders_events.keep(node, first)
    leaders_events.keep(node, first)
    leader.events.extend(happened("n0", 9))
    second = leaders_events.own_next(leader, OWN, told(node))
    assert (sequences(second), second.after) == ([9], 5)
    leaders_events.keep(node, second)
    assert not leaders_events.own_next(leader, OWN, told(node)).events
    assert sequences(leaders_events.own_next(kept(1, 2), NodeEvents("n2", 8), told(node))) == [1, 2]


def test_the_next_leader_is_owed_all_that_is_kept_of_the_one_before_in_parts():
    node, many = UnsentOfJob(), leaders_events.AT_ONCE_MAX + 10
    leaders_events.keep(node, NodeEvents("n0", 7, happened("n0", *range(1, many + 1))))
    assert not node.owed
    leaders_events.keep(node, NodeEvents("n2", 8))
    assert [(each.node, each.submitted_at_ns, each.after, len(each.events)) for each in node.owed] == [
        ("n0", 7, 0, leaders_events.AT_ONCE_MAX), ("n0", 7, leaders_events.AT_ONCE_MAX, 10)
    ]  # fmt: skip
    assert leaders_events.has_through(node) == (8, 0)


def test_one_message_holds_so_much_and_details_that_are_longer_than_that_stay_where_they_are():
    events = tuple(
        msgspec.structs.replace(event, details=(("text", "x" * size),))
        for event, size in zip(happened("n0", 1, 2, 3), (60_000, 40_000, 40_000), strict=True)
    )
    chosen = leaders_events.next_of(events, after=0)
    assert [event.sequence for event in chosen] == [1, 2, 3]
    assert dict(chosen[0].details) == {"left_out": "1 details, which the journal of node n0 has"}
    assert [event.sequence for event in leaders_events.next_of(events[1:] * 2, after=0)] == [2, 3]
