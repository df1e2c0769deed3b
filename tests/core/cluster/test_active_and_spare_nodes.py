"""The order of nodes: the documented cases as a table, and random ones against a slow, obvious version."""

from __future__ import annotations

import random
from itertools import groupby

import pytest

from supervisor.core.cluster.active_and_spare_nodes import Placement, place
from supervisor.core.facts import NodeFacts, RendezvousRules

SEEDS = 400


def ranked(*ranks: int) -> dict[str, NodeFacts]:
    return {f"n{rank}": NodeFacts(rank) for rank in ranks}


def in_domains(**domains: range | tuple[int, ...]) -> dict[str, NodeFacts]:
    return {f"n{rank}": NodeFacts(rank, domain=name) for name, ranks in domains.items() for rank in ranks}


def in_groups(**groups: tuple[int, ...]) -> dict[str, NodeFacts]:
    return {f"n{rank}": NodeFacts(rank, replacement_group=name) for name, ranks in groups.items() for rank in ranks}


def shown(placed: Placement | None) -> str:
    """Formats a placement like the cases: "0 1 | 2"."""
    if placed is None:
        return "waits"
    active, spares = (" ".join(node.removeprefix("n") for node in nodes) for nodes in (placed.active, placed.spares))
    return f"{active} | {spares}".rstrip(" |")


@pytest.mark.parametrize(
    ("nodes", "wanted", "rules", "expected"),
    [
        (ranked(*range(8)), 6, RendezvousRules(), "0 1 2 3 4 5 | 6 7"),
        ({"nC": NodeFacts(), "nA": NodeFacts(), "nB": NodeFacts()}, 2, RendezvousRules(), "A B | C"),
        # Ranks of only some nodes define no order.
        ({"nC": NodeFacts(0), "nA": NodeFacts(5), "nB": NodeFacts()}, 2, RendezvousRules(), "A B | C"),
        (ranked(7, 3, 0, 5, 1), 4, RendezvousRules(), "0 1 3 5 | 7"),
        (ranked(0, 2, 3, 8), 4, RendezvousRules(), "0 2 3 8"),
        (ranked(0, 1), 3, RendezvousRules(), "waits"),
        (in_domains(A=range(6), B=range(6, 12)), 8, RendezvousRules(segment=4), "0 1 2 3 6 7 8 9 | 4 5 10 11"),
        (in_domains(A=range(3), B=range(3, 12)), 8, RendezvousRules(segment=4), "3 4 5 6 7 8 9 10 | 0 1 2 11"),
        (in_domains(A=range(4), B=range(4, 7), C=range(7, 12)), 8, RendezvousRules(segment=4),
         "0 1 2 3 7 8 9 10 | 4 5 6 11"),
        (in_domains(A=(0, 2, 4), B=(1, 3)), 4, RendezvousRules(segment=2), "0 2 1 3 | 4"),
        (in_domains(A=range(4), B=range(4, 7), C=range(7, 10)), 8, RendezvousRules(segment=4), "waits"),
        (in_groups(t0=(0, 1), t1=(2,), t2=(4, 5)), 4, RendezvousRules(replacement_group_size=2), "0 1 4 5 | 2"),
        # A node in no known domain is at most a spare.
        (in_domains(A=(1, 2)) | ranked(0), 2, RendezvousRules(segment=1), "1 2 | 0"),
    ],
)  # fmt: skip
def test_documented_cases(nodes: dict[str, NodeFacts], wanted: int, rules: RendezvousRules, expected: str) -> None:
    backwards = dict(reversed(nodes.items()))
    assert shown(place(nodes, rules, wanted=wanted)) == shown(place(backwards, rules, wanted=wanted)) == expected


KEEP = RendezvousRules(keep_ranks=True)


@pytest.mark.parametrize(
    ("nodes", "wanted", "before", "expected"),
    [
        (ranked(0, 2, 3, 8), 4, (0, 1, 2, 3), "0 8 2 3"),
        (ranked(0, 1, 2, 3), 4, (3, 2, 1, 0), "3 2 1 0"),
        (ranked(0, 3, 9, 8), 4, (0, 1, 2, 3), "0 8 9 3"),
        # Shrunk to fewer: nodes beyond the new size fill the gaps.
        (ranked(0, 2, 3), 3, (0, 1, 2, 3), "0 3 2"),
        (ranked(0, 1, 2, 3), 4, (1, 0), "1 0 2 3"),
    ],
)
def test_survivors_keep_their_ranks(
    nodes: dict[str, NodeFacts], wanted: int, before: tuple[int, ...], expected: str
) -> None:
    assert shown(place(nodes, KEEP, wanted=wanted, before=tuple(f"n{each}" for each in before))) == expected
    inorder = " ".join(
        str(facts.infrastructure_rank)
        for facts in sorted(nodes.values(), key=lambda each: each.infrastructure_rank or 0)
    )
    plain = place(nodes, RendezvousRules(), wanted=wanted, before=tuple(f"n{each}" for each in before))
    assert shown(plain) == inorder, "without --keep-ranks the infrastructure's order holds always"


def test_a_segment_that_can_not_be_made_whole_moves_and_the_others_stay() -> None:
    rules = RendezvousRules(segment=2, keep_ranks=True)
    before = ("n0", "n1", "n4", "n5")
    nodes = in_domains(A=range(3), B=range(4, 8))
    del nodes["n0"]
    assert shown(place(nodes, rules, wanted=4, before=before)) == "2 1 4 5 | 6 7"
    del nodes["n2"]
    assert shown(place(nodes, rules, wanted=4, before=before)) == "6 7 4 5 | 1"


# --- against the obvious version -----------------------------------------------------------------------------------


def obvious(nodes: dict[str, NodeFacts], rules: RendezvousRules, wanted: int) -> list[str] | None:
    """Takes the domain of the first node, segment by segment; then that of the next, and so on."""
    left = sorted(nodes)
    if all(nodes[node].infrastructure_rank is not None for node in left):
        left.sort(key=lambda node: nodes[node].infrastructure_rank or 0)
    if rules.replacement_group_size is not None:
        groups = [nodes[node].replacement_group for node in left]
        size = rules.replacement_group_size
        left = [
            node
            for node in left
            if nodes[node].replacement_group and groups.count(nodes[node].replacement_group) >= size
        ]
    if rules.segment is None:
        return left[:wanted] if len(left) >= wanted else None
    found: list[str] = []
    for first in left:
        peers = [each for each in left if nodes[each].domain == nodes[first].domain != ""]
        if not peers or peers[0] != first:
            continue  # another node came first in this domain
        while len(peers) >= rules.segment and len(found) < wanted:
            found += [peers.pop(0) for _ in range(rules.segment)]
    return found if len(found) == wanted else None


def drawn(draw: random.Random) -> tuple[dict[str, NodeFacts], RendezvousRules, int]:
    segment = draw.choice([None, 1, 2, 3])
    rules = RendezvousRules(
        segment=segment, replacement_group_size=draw.choice([None, None, 2]), keep_ranks=draw.random() < 0.5
    )
    ranks = draw.sample(range(30), draw.randint(0, 14))
    unranked = draw.random() < 0.2
    nodes = {
        f"n{rank:02}": NodeFacts(
            None if unranked and draw.random() < 0.3 else rank,
            domain=draw.choice(["A", "B", "C", ""]),
            replacement_group=draw.choice(["", "t0", "t1", "t2", "t3"]),
        )
        for rank in ranks
    }
    return nodes, rules, draw.randint(1, 4) * (segment or 1)


def test_random_cases_agree_with_the_obvious_version() -> None:
    for seed in range(SEEDS):
        draw = random.Random(seed)
        nodes, rules, wanted = drawn(draw)
        placed = place(nodes, rules, wanted=wanted)
        expected = obvious(nodes, rules, wanted)
        assert (list(placed.active) if placed else None) == expected, seed
        if placed is not None:
            assert sorted((*placed.active, *placed.spares)) == sorted(nodes), f"{seed}: each node once"


def test_random_losses_move_no_node_that_could_stay() -> None:
    """For any earlier placement and any losses, a cycle is possible with kept ranks exactly if it is without."""
    for seed in range(SEEDS):
        draw = random.Random(seed)
        nodes, rules, wanted = drawn(draw)
        before = place(nodes, rules, wanted=wanted)
        if before is None:
            continue
        left = {node: facts for node, facts in nodes.items() if draw.random() < 0.8}
        left |= {
            f"new{number}": NodeFacts(40 + number, domain=draw.choice("AB"), replacement_group="t9")
            for number in range(draw.randint(0, 4))
        }
        size = wanted if draw.random() < 0.7 else draw.randint(1, 4) * (rules.segment or 1)
        kept = place(left, rules, wanted=size, before=before.active)
        assert (kept is None) == (obvious(left, rules, size) is None), seed
        if kept is None:
            continue
        assert len(set(kept.active)) == len(kept.active) == size, seed
        if rules.segment is not None:
            blocks = [kept.active[first : first + rules.segment] for first in range(0, size, rules.segment)]
            assert all(len(list(groupby(left[node].domain for node in block))) == 1 for block in blocks), seed
        elif rules.keep_ranks and rules.replacement_group_size is None:
            stayed = [(rank, node) for rank, node in enumerate(before.active[:size]) if node in left]
            assert all(kept.active[rank] == node for rank, node in stayed), seed
