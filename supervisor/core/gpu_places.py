"""Near which CPUs and which memory is each GPU of a job, and how is the binding of its workers reported?"""

from __future__ import annotations

import msgspec


class GpuPlace(msgspec.Struct, frozen=True):
    """`numa_node` -1: the kernel does not tell it. `cpus` of that node."""

    gpu: str
    numa_node: int = -1
    cpus: tuple[int, ...] = ()


def places_sentence(places: tuple[GpuPlace, ...], local_world_size: int) -> str:
    """ "local ranks 0 and 1 are bound to NUMA node 0 (32 CPUs), …": the GPU of a local rank has its number."""
    by_node: dict[int, list[int]] = {}
    for local_rank in range(local_world_size):
        node = places[local_rank].numa_node if local_rank < len(places) else -1
        by_node.setdefault(node, []).append(local_rank)
    cpus = {place.numa_node: len(place.cpus) for place in places}
    parts = [
        f"{_ranks(ranks)} bound to NUMA node {node} ({cpus[node]} CPUs)" if node >= 0 else f"{_ranks(ranks)} not bound"
        for node, ranks in by_node.items()
    ]
    return ", ".join(parts)


def _ranks(local_ranks: list[int]) -> str:
    if len(local_ranks) == 1:
        return f"local rank {local_ranks[0]} is"
    return f"local ranks {', '.join(map(str, local_ranks[:-1]))} and {local_ranks[-1]} are"
