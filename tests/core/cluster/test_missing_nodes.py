"""What does a round wait for? The sentence names the node or the domain."""

from __future__ import annotations

import pytest

from supervisor.core.cluster.missing_nodes import missing_sentence, names
from supervisor.core.cluster.node_states import Member, MemberState
from supervisor.core.facts import NodeFacts, RendezvousRules

JOINED, LOST, RUNNING = MemberState.JOINED, MemberState.LOST, MemberState.RUNNING


def joined(rank: int, domain: str = "", group: str = "") -> Member:
    return Member(JOINED, facts=NodeFacts(rank, domain=domain, replacement_group=group))


@pytest.mark.parametrize(
    ("members", "rules", "min_nodes", "text"),
    [
        ({}, RendezvousRules(), 2, "0 of 2 nodes have joined; 2 nodes more have not come yet"),
        ({"b": Member(JOINED), "a": Member(JOINED)}, RendezvousRules(), 3,
         "2 of 3 nodes have joined (a, b); 1 node more has not come yet"),
        ({"a": Member(JOINED), "b": Member(LOST, 3), "c": Member(MemberState.OPENED)}, RendezvousRules(), 3,
         "1 of 3 nodes have joined (a); node c is not ready yet; node b is lost; 1 node more has not come yet"),
        ({"a": Member(JOINED), "b": Member(RUNNING), "c": Member(MemberState.DOWN)}, RendezvousRules(), 3,
         "1 of 3 nodes have joined (a); node c is without a spawner; workers of the last cycle may still run on b"),
        ({"a": Member(JOINED, excluded="rank 0 asked to exclude node a"), "b": Member(JOINED)}, RendezvousRules(), 2,
         "1 of 2 nodes have joined (b); rank 0 asked to exclude node a"),
        ({"a": joined(0, "X"), "b": joined(1, "X"), "c": joined(2, "Y"), "d": joined(3)}, RendezvousRules(segment=2), 4,
         "4 of 4 nodes have joined; 1 of 2 segments of 2 nodes are complete; NVLink domain Y has 1 node and lacks 1; "
         "node d is in no NVLink domain that is known (check nvidia-smi -q or write --rdzv-conf nvlink_domain=NAME)"),
        ({"a": joined(0, group="t0"), "b": joined(1, group="t1"), "c": joined(2, group="t1")},
         RendezvousRules(replacement_group_size=2), 4,
         "3 of 4 nodes have joined (a, b, c); node a is without the rest of the replacement group of 2; "
         "1 node more has not come yet"),
    ],
)  # fmt: skip
def test_sentences(members: dict[str, Member], rules: RendezvousRules, min_nodes: int, text: str) -> None:
    assert missing_sentence(members, rules, min_nodes=min_nodes, before=("b",) if "b" in members else ()) == text


def test_thousands_of_names_are_not_listed() -> None:
    assert names([f"n{number}" for number in range(1000)]) == "n0, n1, n2, n3, n4, n5, n6 and 993 more"
