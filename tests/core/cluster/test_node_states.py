"""The counters of a job's nodes equal a full count, and an event costs the same among many nodes."""

from __future__ import annotations

import random
from collections import Counter
from time import process_time

import msgspec

from supervisor.core.cluster import coordinator, job_termination, node_states
from supervisor.core.cluster.cluster_messages import (
    Event,
    JobOpened,
    NodeExcluded,
    NodeFailed,
    NodeJoined,
    NodeStopped,
    NodeSucceeded,
    StacksTaken,
    StacksWanted,
    VerdictTaken,
)
from supervisor.core.cluster.coordinator_states import Running
from supervisor.core.cluster.node_states import BUSY, GONE, Member, Members, MemberState
from supervisor.core.facts import Evidence, JobRules, NodeFacts, RendezvousRules, RestartRules

FEW, MANY = 1_280, 20_480
LINEAR_MAX = 2.5  # the cost per event with 16 times as many nodes; copying all would cost 10 times as much


def drawn(draw: random.Random) -> Member:
    facts = NodeFacts(
        draw.choice([None, *range(6)]),
        domain=draw.choice(["", "A", "B"]),
        replacement_group=draw.choice(["", "t", "u"]),
    )
    return Member(
        draw.choice(list(MemberState)),
        cycle=draw.randint(-1, 2),
        excluded=draw.choice(["", "", "bad link"]),
        is_silent=draw.random() < 0.2,
        comes_again=draw.random() < 0.2,
        facts=facts,
    )


def check(members: Members, rules: RendezvousRules) -> None:
    """Counts everything again."""
    known = dict(members.items())
    joined = [each for each in known.values() if each.state is MemberState.JOINED]
    ready = [each.facts for each in joined if not each.excluded and not each.is_silent]
    assert members.ready == len(ready)
    silent = [each for each in known.values() if each.is_silent and each.state not in GONE]
    back = [each for each in known.values() if each.comes_again and each.state is MemberState.LOST]
    assert members.awaited == len(silent) + len(back)
    assert members.excluded == sum(bool(each.excluded) for each in known.values())
    gone = [each for each in known.values() if each.excluded]
    assert members.leaving == sum(each.state in BUSY for each in gone)
    refused = [each for each in known.values() if each.state is MemberState.REFUSED]
    assert members.turned_away == sum(not each.excluded for each in refused)
    assert members.busy == sum(each.state in BUSY for each in known.values())
    assert members.are_all(*GONE) == all(each.state in GONE for each in known.values())
    for cycle in (-1, 0, 1, 2):
        down = [each for each in known.values() if each.state is MemberState.DOWN and not each.excluded]
        assert members.returning(cycle) == sum(each.cycle == cycle for each in down)
        assert members.returning() == len(down)
    if rules.replacement_group_size is not None:
        sizes = Counter(facts.replacement_group for facts in ready)
        ready = [each for each in ready if each.replacement_group]
        ready = [each for each in ready if sizes[each.replacement_group] >= rules.replacement_group_size]
    assert members.candidates == len(ready)
    if rules.segment is not None:
        sizes = Counter(facts.domain for facts in ready if facts.domain)
        assert members.placeable == sum(size // rules.segment * rules.segment for size in sizes.values())
    for rank in range(6):
        here = [
            node for node, each in known.items() if each.facts.infrastructure_rank == rank and each.state not in GONE
        ]
        assert (members.with_rank(rank) in here) if here else members.with_rank(rank) is None


def test_the_counters_are_true_after_any_change() -> None:
    for seed in range(60):
        draw = random.Random(seed)
        rules = RendezvousRules(segment=draw.choice([None, 1, 2]), replacement_group_size=draw.choice([None, 2]))
        members = node_states.for_rules(rules)
        for _ in range(40):
            node = draw.choice("abcdefgh")
            member = drawn(draw)
            taken_by = members.with_rank(member.facts.infrastructure_rank)
            if taken_by not in (None, node):  # the coordinator refuses it
                member = msgspec.structs.replace(member, facts=NodeFacts())
            members.put(node, member)
            check(members, rules)


def life(nodes: int) -> list[Event]:
    """Every node comes, fails, comes again, has its stacks taken, succeeds, stops and knows the end.

    One that came as a spare was excluded before, and has left.
    """
    rendezvous = RendezvousRules(max_nodes=nodes, segment=4)
    names = [f"node{number:05}" for number in range(nodes)]
    rules = JobRules("job", 8, restart=RestartRules(max_restarts=3, min_nodes=nodes), rendezvous=rendezvous)
    events: list[Event] = [
        JobOpened(name, msgspec.structs.replace(rules, facts=NodeFacts(number, domain=f"d{number // 64}")))
        for number, name in enumerate(names)
    ]
    events += [NodeJoined(name, -1) for name in names]
    events += [JobOpened("unfit", rules), NodeExcluded("unfit", "node unfit is unhealthy")]
    events += [NodeFailed(name, 0, "rank 1 died") for name in names]
    events += [NodeJoined(name, 0) for name in names]
    events += [StacksWanted(names[0], 1, (1,), 1.0), *(StacksTaken(name, 1, Evidence()) for name in names)]
    events += [NodeSucceeded(name, 1) for name in names]
    events += [NodeStopped(name, all_succeeded=True) for name in names]
    events += [VerdictTaken(name) for name in names]
    return events


def seconds_each(nodes: int) -> float:
    state = coordinator.initial_state("job")
    events = life(nodes)
    began_s = process_time()
    for event in events:
        state, _ = coordinator.step(state, event, now_s=0.0, jitter=0.0)
        coordinator.next_deadline_s(state)
        job_termination.is_over(state)
    took_s = process_time() - began_s
    assert job_termination.is_over(state)
    assert coordinator.restarts_used(state) == 1
    return took_s / len(events)


def test_an_event_costs_the_same_among_many_nodes_as_among_few() -> None:
    """Measures CPU time, the best of a few attempts: other load on the machine must not decide."""
    ratios: list[float] = []
    for _ in range(4):
        ratios.append(seconds_each(MANY) / seconds_each(FEW))
        if ratios[-1] <= LINEAR_MAX:
            return
    raise AssertionError(f"an event among {MANY} nodes costs {min(ratios):.1f} times as much as among {FEW}")


def test_the_last_of_many_to_join_begins_the_cycle() -> None:
    state = coordinator.initial_state("job")
    for event in life(256)[: 2 * 256]:
        assert not isinstance(state.phase, Running)
        state, _ = coordinator.step(state, event, now_s=0.0, jitter=0.0)
    assert isinstance(state.phase, Running)


def test_a_reader_that_has_all_learns_which_nodes_have_changed() -> None:
    members = Members()
    members.put("a", Member(MemberState.JOINED))
    members.put("b", Member(MemberState.JOINED))
    members.put("a", Member(MemberState.RUNNING))
    assert [*members.take_changed()] == ["a", "b"]
    assert not members.take_changed()
    members.put("b", Member(MemberState.RUNNING))
    assert [*members.take_changed()] == ["b"]
