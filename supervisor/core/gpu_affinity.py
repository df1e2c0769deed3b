"""Which CPUs and which memory are near each GPU of a job, and how is the binding of its workers reported?"""

from __future__ import annotations

import msgspec


class GpuPlace(msgspec.Struct, frozen=True):
    """Where a GPU is. `numa_node` -1: the kernel does not report it. `cpus`: those that its worker is bound to."""

    gpu: str
    numa_node: int = -1
    cpus: tuple[int, ...] = ()
    spans_nodes: bool = False  # the CPUs span several nodes, so memory of only one would be wrong


_WHERE = {
    "socket": "the socket of NUMA node {node} ({cpus})",
    "exclusive": "cores of their own on NUMA node {node} ({cpus} each)",
    "core-complex": "a core complex of NUMA node {node} ({cpus} each)",
}


def places_sentence(places: tuple[GpuPlace, ...], local_world_size: int, mode: str = "node") -> str:
    """Returns "local ranks 0 and 1 are bound to NUMA node 0 (32 CPUs), …". Local rank N has GPU N."""
    by_node: dict[int, list[int]] = {}
    for local_rank in range(local_world_size):
        node = places[local_rank].numa_node if local_rank < len(places) else -1
        by_node.setdefault(node, []).append(local_rank)
    return ", ".join(
        f"{_ranks(ranks)} bound to {_where(mode, node, [len(places[each].cpus) for each in ranks])}"
        if node >= 0
        else f"{_ranks(ranks)} not bound"
        for node, ranks in by_node.items()
    )


def _where(mode: str, node: int, counts: list[int]) -> str:
    fewest, most = min(counts), max(counts)
    cpus = f"{fewest} CPUs" if fewest == most else f"{fewest} to {most} CPUs"
    return _WHERE.get(mode, "NUMA node {node} ({cpus})").format(node=node, cpus=cpus)


def _ranks(local_ranks: list[int]) -> str:
    if len(local_ranks) == 1:
        return f"local rank {local_ranks[0]} is"
    return f"local ranks {', '.join(map(str, local_ranks[:-1]))} and {local_ranks[-1]} are"
