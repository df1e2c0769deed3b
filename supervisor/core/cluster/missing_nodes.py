"""What is missing for the next cycle: how many nodes, which ones, and of which NVLink domain?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from supervisor.core.cluster.active_and_spare_nodes import by_domain, complete_groups, ordered
from supervisor.core.cluster.node_states import BUSY, Member, MemberState
from supervisor.core.facts import RendezvousRules

NAMES_MAX = 8  # in one list; a sentence about thousands of nodes is of no help


def missing_sentence(
    members: Mapping[str, Member], rules: RendezvousRules, *, min_nodes: int, before: Sequence[str] = ()
) -> str:
    """Returns a sentence about what is missing. Looks at all nodes. `before`: the nodes of the last cycle."""
    ready = {node: each.facts for node, each in members.items() if each.is_ready}
    joined = f"{len(ready)} of {min_nodes} nodes have joined"
    if ready and len(ready) < min_nodes:
        joined += f" ({names(ordered(ready))})"
    parts = [joined]
    if rules.replacement_group_size is not None:
        parts += _groups(members, rules)
    if rules.segment is not None:
        parts += _domains(members, rules, rules.segment, min_nodes)
    parts += _others(members, before)
    unheard = min_nodes - sum(each.state not in (MemberState.LOST, MemberState.REFUSED) for each in members.values())
    if unheard > 0:
        parts.append(f"{counted(unheard)} more {'has' if unheard == 1 else 'have'} not come yet")
    return "; ".join(parts)


def names(nodes: Sequence[str]) -> str:
    """Returns the first names and how many more there are."""
    if len(nodes) <= NAMES_MAX:
        return ", ".join(nodes)
    return f"{', '.join(nodes[: NAMES_MAX - 1])} and {len(nodes) - NAMES_MAX + 1} more"


def _domains(members: Mapping[str, Member], rules: RendezvousRules, segment: int, min_nodes: int) -> list[str]:
    ready = {node: each.facts for node, each in members.items() if each.is_ready}
    complete = complete_groups(ready, rules)
    domains = by_domain((node for node in ordered(ready) if node in complete), ready, rules)
    whole = sum(len(nodes) // segment for nodes in domains.values())
    needed = min_nodes // segment
    if whole >= needed:
        return []
    parts = [f"{whole} of {needed} segments of {counted(segment)} are complete"]
    lacking = sorted(
        (segment - len(nodes) % segment, domain, len(nodes))
        for domain, nodes in domains.items()
        if len(nodes) % segment
    )
    if lacking:
        texts = [f"{domain} has {counted(count)} and lacks {lack}" for lack, domain, count in lacking]
        parts.append(f"NVLink domain {names(texts)}")
    without = [node for node, facts in ready.items() if not facts.domain]
    if without:
        remedy = "check nvidia-smi -q or write --rdzv-conf nvlink_domain=NAME"
        parts.append(f"{_of(without)} in no NVLink domain that is known ({remedy})")
    return parts


def _groups(members: Mapping[str, Member], rules: RendezvousRules) -> list[str]:
    ready = {node: each.facts for node, each in members.items() if each.is_ready}
    waiting = sorted(set(ready) - complete_groups(ready, rules))
    size = rules.replacement_group_size
    return [f"{_of(waiting)} without the rest of the replacement group of {size}"] if waiting else []


def _others(members: Mapping[str, Member], before: Sequence[str]) -> list[str]:
    """Returns nodes that are known but have not joined."""
    starting = [node for node, each in members.items() if each.state is MemberState.OPENED]
    down = [node for node, each in members.items() if each.is_returning]
    busy = [node for node, each in members.items() if each.state in BUSY]
    silent = [node for node, each in members.items() if each.is_silent and each.state is MemberState.JOINED]
    lost = [node for node in before if members[node].state is MemberState.LOST]
    cordoned = [node for node, each in members.items() if each.cordoned and each.state is not MemberState.LOST]
    excluded = [each.excluded for each in members.values() if each.excluded]
    parts: list[str] = []
    if starting:
        parts.append(f"{_of(starting)} not ready yet")
    if down:
        parts.append(f"{_of(down)} without a spawner")
    if busy:
        parts.append(f"workers of the last cycle may still run on {names(busy)}")
    if silent:
        parts.append(f"{_of(silent)} not heard at present")
    if lost:
        parts.append(f"{_of(lost)} lost")
    if cordoned:
        parts.append(f"{_of(cordoned)} cordoned (holdfast uncordon {cordoned[0]} brings it back)")
    return [*parts, *excluded[:NAMES_MAX]]


def _of(nodes: Sequence[str]) -> str:
    return f"node{'s' if len(nodes) > 1 else ''} {names(nodes)} {'are' if len(nodes) > 1 else 'is'}"


def counted(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
