"""Which nodes take part in a cycle, in which order, and which are spares?

The order is the scheduler's (infrastructure ranks), or by name if any node has no such rank. With segments, that number
of nodes in one NVLink domain have consecutive group ranks. Only complete replacement groups take part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from supervisor.core.facts import NodeFacts, RendezvousRules

Domains = dict[str, list[str]]  # the nodes of each in order; the domain with the first node comes first


class Placement(msgspec.Struct, frozen=True):
    active: tuple[str, ...]  # by group rank
    spares: tuple[str, ...]  # in the order in which they step in


def place(
    nodes: Mapping[str, NodeFacts], rules: RendezvousRules, *, wanted: int, before: Sequence[str] = ()
) -> Placement | None:
    """Returns a placement with `wanted` active nodes; None if these nodes can't provide it.

    `before`: the active nodes of the last cycle by group rank, which matter only with `keep_ranks`.
    """
    order = ordered(nodes)
    complete = complete_groups(nodes, rules)
    candidates = [node for node in order if node in complete]
    domains = by_domain(candidates, nodes, rules)
    segment = rules.segment or 1
    active = _keeping(domains, segment, wanted, before) if rules.keep_ranks and before else None
    active = active or _in_order(domains, segment, wanted)
    if active is None:
        return None
    chosen = frozenset(active)
    rest = dict.fromkeys(node for nodes_of in domains.values() for node in nodes_of)
    rest |= dict.fromkeys(candidates) | dict.fromkeys(order)
    return Placement(tuple(active), tuple(node for node in rest if node not in chosen))


def ordered(nodes: Mapping[str, NodeFacts]) -> list[str]:
    """Returns the nodes in order. If only some have ranks, the names decide for all."""
    ranks = {node: facts.infrastructure_rank for node, facts in nodes.items()}
    known = {node: rank for node, rank in ranks.items() if rank is not None}
    if len(known) < len(ranks):
        return sorted(nodes)
    return sorted(nodes, key=lambda node: (known[node], node))


def complete_groups(nodes: Mapping[str, NodeFacts], rules: RendezvousRules) -> set[str]:
    """Returns the nodes that may take part: all, or those whose replacement group is complete."""
    if rules.replacement_group_size is None:
        return set(nodes)
    groups: dict[str, list[str]] = {}
    for node, facts in nodes.items():
        groups.setdefault(facts.replacement_group, []).append(node)
    size = rules.replacement_group_size
    return {node for name, group in groups.items() if name and len(group) >= size for node in group}


def by_domain(order: Iterable[str], nodes: Mapping[str, NodeFacts], rules: RendezvousRules) -> Domains:
    """Groups nodes by domain. Without segments, each node is its own domain; with them, it must have one."""
    domains: Domains = {}
    for node in order:
        domain = node if rules.segment is None else nodes[node].domain
        if domain:
            domains.setdefault(domain, []).append(node)
    return domains


def _in_order(domains: Domains, segment: int, wanted: int) -> list[str] | None:
    """Takes as many whole segments as each domain has, the first domains first."""
    active: list[str] = []
    for nodes in domains.values():
        whole = len(nodes) // segment * segment
        active += nodes[: min(whole, wanted - len(active))]
    return active if len(active) == wanted else None


# --- survivors that keep their ranks -------------------------------------------------------------------------------


def _keeping(domains: Domains, segment: int, wanted: int, before: Sequence[str]) -> list[str] | None:
    """Gives a lost node's rank to a spare of its domain; a segment that can't be completed moves to another domain."""
    place_of = {node: place for place, node in enumerate(node for nodes in domains.values() for node in nodes)}
    domain_of = {node: domain for domain, nodes in domains.items() for node in nodes}
    blocks = [before[first : first + segment] for first in range(0, min(wanted, len(before)), segment)]
    kept = {node for block in blocks for node in block if node in domain_of}
    free = {domain: deque(node for node in nodes if node not in kept) for domain, nodes in domains.items()}
    active: list[str] = []
    moved: list[int] = []
    for first, block in zip(range(0, wanted, segment), [*blocks, *[()] * wanted], strict=False):
        filled = _filled(block, segment, domain_of, free)
        if filled is None:
            moved.append(first)
            released = [node for node in block if node in domain_of]
            for domain in dict.fromkeys(domain_of[node] for node in released):
                of_domain = [*free[domain], *(node for node in released if domain_of[node] == domain)]
                free[domain] = deque(sorted(of_domain, key=place_of.__getitem__))
        active += filled or [""] * segment
    waiting = iter(free.values())
    here: deque[str] = deque()
    for first in moved:
        while len(here) < segment:
            following = next(waiting, None)
            if following is None:
                return None
            here = following
        active[first : first + segment] = [here.popleft() for _ in range(segment)]
    return active


def _filled(
    block: Sequence[str], segment: int, domain_of: Mapping[str, str], free: Mapping[str, deque[str]]
) -> list[str] | None:
    """Returns the segment with its gaps filled from its own domain; None if that is impossible."""
    left = {domain_of[node] for node in block if node in domain_of}
    if len(left) != 1 or len(block) != segment:
        return None
    spares = free[left.pop()]
    if sum(node not in domain_of for node in block) > len(spares):
        return None
    return [node if node in domain_of else spares.popleft() for node in block]
