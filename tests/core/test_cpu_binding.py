"""Which CPUs does each mode of binding give to the workers of a made-up machine?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as draw

from supervisor.core.cpu_binding import NoRoomError, NumaBinding, NumaNode, places
from supervisor.core.gpu_affinity import GpuPlace

# Two sockets of two nodes; each node has four cores of two threads, two of which share a cache.
ALL = frozenset(range(32))


def node(number: int) -> NumaNode:
    first = number * 4
    cores = tuple((cpu, cpu + 16) for cpu in range(first, first + 4))
    complexes = tuple(tuple(sorted((*cores[at], *cores[at + 1]))) for at in (0, 2))
    return NumaNode(number, tuple(sorted(cpu for core in cores for cpu in core)), number // 2, cores, complexes)


NODES = {number: node(number) for number in range(4)}
GPUS = [("GPU 0", 1), ("GPU 1", 0), ("GPU 2", 1), ("GPU 3", -1)]


def cpus(mode: NumaBinding, *, gpus: list[tuple[str, int]] = GPUS, allowed: frozenset[int] = ALL) -> list[list[int]]:
    return [list(each.cpus) for each in places(mode, gpus, NODES, allowed=allowed)]


def test_a_node_and_a_socket() -> None:
    assert cpus(NumaBinding.NODE)[:2] == [[4, 5, 6, 7, 20, 21, 22, 23], [0, 1, 2, 3, 16, 17, 18, 19]]
    both = [*range(8), *range(16, 24)]
    assert cpus(NumaBinding.SOCKET) == [both, both, both, []]
    found = places(NumaBinding.SOCKET, GPUS, NODES, allowed=ALL)
    assert [each.spans_nodes for each in found] == [True, True, True, False]
    alone = {0: NumaNode(0, (0, 1), 0)}
    assert places(NumaBinding.SOCKET, [("GPU 0", 0)], alone, allowed=ALL) == (GpuPlace("GPU 0", 0, (0, 1)),)
    unknown = {0: NumaNode(0, (0, 1)), 1: NumaNode(1, (2, 3))}
    assert places(NumaBinding.SOCKET, [("GPU 0", 0)], unknown, allowed=ALL) == (GpuPlace("GPU 0", 0, (0, 1)),)


def test_whole_cores_that_no_other_worker_has() -> None:
    assert cpus(NumaBinding.EXCLUSIVE) == [[4, 5, 20, 21], [0, 1, 2, 3, 16, 17, 18, 19], [6, 7, 22, 23], []]
    three = [("GPU 0", 0), ("GPU 1", 0), ("GPU 2", 0)]
    assert cpus(NumaBinding.EXCLUSIVE, gpus=three) == [[0, 1, 16, 17], [2, 18], [3, 19]], "the first has what is over"


def test_core_complexes_in_turn_the_largest_first() -> None:
    assert cpus(NumaBinding.CORE_COMPLEX) == [[4, 5, 20, 21], [0, 1, 16, 17], [6, 7, 22, 23], []]
    part = ALL - {0, 16}
    three = [("GPU 0", 0), ("GPU 1", 0), ("GPU 2", 0)]
    assert cpus(NumaBinding.CORE_COMPLEX, gpus=three, allowed=part) == [[2, 3, 18, 19], [1, 17], [2, 3, 18, 19]]


@pytest.mark.parametrize("mode", [NumaBinding.EXCLUSIVE, NumaBinding.CORE_COMPLEX])
def test_no_cpu_that_the_job_may_not_use(mode: NumaBinding) -> None:
    with pytest.raises(NoRoomError, match="NUMA node 1"):
        cpus(mode, allowed=frozenset({0, 1}))


@given(
    sharers=draw.integers(1, 4), allowed=draw.frozensets(draw.sampled_from(sorted(ALL)), min_size=1)
)  # fmt: skip
def test_exclusive_shares_are_whole_disjoint_and_complete(sharers: int, allowed: frozenset[int]) -> None:
    gpus = [(f"GPU {number}", 0) for number in range(sharers)]
    usable = {core: allowed.intersection(core) for core in NODES[0].cores if allowed.intersection(core)}
    if len(usable) < sharers:
        with pytest.raises(NoRoomError):
            cpus(NumaBinding.EXCLUSIVE, gpus=gpus, allowed=allowed)
        return
    shares = cpus(NumaBinding.EXCLUSIVE, gpus=gpus, allowed=allowed)
    assert sorted(cpu for share in shares for cpu in share) == sorted(cpu for core in usable.values() for cpu in core)
    for core in usable.values():
        assert sum(bool(core.intersection(share)) for share in shares) == 1
