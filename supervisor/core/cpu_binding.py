"""Which CPUs is a worker bound to: those of its GPU's NUMA node, those of the socket, or a share of its own?

The modes are those of torchrun's --numa-binding.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence

import msgspec

from supervisor.core.gpu_affinity import GpuPlace

Cpus = tuple[int, ...]


class NumaBinding(enum.StrEnum):
    NONE = "none"
    NODE = "node"
    SOCKET = "socket"
    EXCLUSIVE = "exclusive"
    CORE_COMPLEX = "core-complex"


class NumaNode(msgspec.Struct, frozen=True):
    """`cores`: groups of CPUs that are threads of one core. `complexes`: groups that share a top-level cache."""

    number: int
    cpus: Cpus
    socket: int = -1  # -1: the kernel does not report it
    cores: tuple[Cpus, ...] = ()
    complexes: tuple[Cpus, ...] = ()


class NoRoomError(Exception):
    """Raised if the mode is impossible here; its text gives the reason, as the end of a sentence."""


def places(
    mode: NumaBinding, gpus: Sequence[tuple[str, int]], nodes: Mapping[int, NumaNode], *, allowed: Collection[int]
) -> tuple[GpuPlace, ...]:
    """Returns the CPUs of each GPU's worker. Raises NoRoomError.

    `gpus`: name and NUMA node (-1: unknown) of each of the job's GPUs. `allowed`: CPUs that this process may use.
    """
    found: list[GpuPlace] = []
    for index, (name, number) in enumerate(gpus):
        if number < 0:
            found.append(GpuPlace(name))
            continue
        node = nodes.get(number, NumaNode(number, ()))
        turn = sum(other == number for _, other in gpus[:index])
        sharers = sum(other == number for _, other in gpus)
        match mode:
            case NumaBinding.NONE | NumaBinding.NODE:
                found.append(GpuPlace(name, number, node.cpus))
            case NumaBinding.SOCKET:
                found.append(_on_socket(name, node, nodes))
            case NumaBinding.EXCLUSIVE:
                found.append(GpuPlace(name, number, _share(node, turn, sharers, allowed)))
            case NumaBinding.CORE_COMPLEX:
                found.append(GpuPlace(name, number, _complex(node, turn, allowed)))
    return tuple(found)


def _on_socket(name: str, node: NumaNode, nodes: Mapping[int, NumaNode]) -> GpuPlace:
    others = [each for each in nodes.values() if each.socket == node.socket] if node.socket >= 0 else [node]
    cpus = sorted(cpu for each in others for cpu in each.cpus)
    return GpuPlace(name, node.number, tuple(cpus), spans_nodes=len(others) > 1)


def _share(node: NumaNode, turn: int, sharers: int, allowed: Collection[int]) -> Cpus:
    """Returns a share in whole cores; the first GPUs get the cores left over."""
    cores = _usable(node.cores, allowed)
    if len(cores) < sharers:
        raise NoRoomError(
            f"of NUMA node {node.number}, {len(cores)} cores may be used, fewer than there are GPUs near it ({sharers})"
        )
    each, more = divmod(len(cores), sharers)
    begin = turn * each + min(turn, more)
    mine = cores[begin : begin + each + (turn < more)]
    return tuple(sorted(cpu for core in mine for cpu in core))


def _complex(node: NumaNode, turn: int, allowed: Collection[int]) -> Cpus:
    """Returns the CPUs of one complex, the largest first. If GPUs outnumber complexes, several share one."""
    complexes = sorted(_usable(node.complexes, allowed), key=lambda each: (-len(each), each))
    if not complexes:
        raise NoRoomError(f"no CPU of NUMA node {node.number} may be used, or the kernel does not report their caches")
    return complexes[turn % len(complexes)]


def _usable(groups: Sequence[Cpus], allowed: Collection[int]) -> list[Cpus]:
    kept = (tuple(cpu for cpu in group if cpu in allowed) for group in groups)
    return sorted(group for group in kept if group)
