"""Which NUMA node is near a device of the PCI bus, and what is the structure of the nodes' CPUs? Read from sysfs.

Values that the kernel does not report have defaults: each core is one CPU, and no caches are shared.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

CACHES_MAX = 16  # for one CPU


def numa_node(sysfs: str, pci_address: str) -> int:
    """Returns the node; -1 if the kernel does not report it. If there is only one node, returns that."""
    node = _number(f"{sysfs}/bus/pci/devices/{pci_address}/numa_node") if pci_address else -1
    numbers = node_numbers(sysfs)
    return numbers[0] if node < 0 and pci_address and len(numbers) == 1 else node


def node_numbers(sysfs: str) -> list[int]:
    with suppress(OSError):
        names = (name.removeprefix("node") for name in os.listdir(f"{sysfs}/devices/system/node"))
        return sorted(int(name) for name in names if name.isdecimal())
    return []


def node_cpus(sysfs: str, node: int) -> list[int]:
    return _list(f"{sysfs}/devices/system/node/node{node}/cpulist")


def structure(sysfs: str, cpus: Iterable[int]) -> tuple[int, list[list[int]], list[list[int]]]:
    """Returns the socket of one node's CPUs (-1: unknown), the threads of each core, and those of each last cache."""
    of_node = list(cpus)
    known = set(of_node)
    cores: dict[int, list[int]] = {}
    caches: dict[int, list[int]] = {}
    for cpu in of_node:
        folder = f"{sysfs}/devices/system/cpu/cpu{cpu}"
        threads = _list(f"{folder}/topology/core_cpus_list") or _list(f"{folder}/topology/thread_siblings_list")
        for groups, shared in ((cores, threads or [cpu]), (caches, _last_cache(folder))):
            mine = sorted(known.intersection(shared))
            if mine:
                groups[mine[0]] = mine
    socket = _number(f"{sysfs}/devices/system/cpu/cpu{of_node[0]}/topology/physical_package_id") if of_node else -1
    return socket, list(cores.values()), list(caches.values())


def _last_cache(folder: str) -> list[int]:
    """Returns the CPUs that share this one's highest level of cache; [] if the kernel does not report it."""
    level, shared = 0, list[int]()
    for index in range(CACHES_MAX):
        cache = f"{folder}/cache/index{index}"
        this = _number(f"{cache}/level")
        if this < 0:
            break
        if this > level:
            level, shared = this, _list(f"{cache}/shared_cpu_list")
    return shared


def _number(path: str) -> int:
    with suppress(OSError, ValueError), open(path) as file:
        return int(file.read())
    return -1


def _list(path: str) -> list[int]:
    with suppress(OSError, ValueError), open(path) as file:
        return cpus_of(file.read())
    return []


def cpus_of(text: str) -> list[int]:
    """Parses CPUs as the kernel writes them, such as "0-3,8". Raises ValueError."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found += range(int(first), int(last or first) + 1)
    return found
