"""Which NUMA node is a device of the PCI bus near to, and which CPUs has that node? Read from sysfs."""

from __future__ import annotations

from contextlib import suppress


def numa_place(sysfs: str, pci_address: str) -> tuple[int, list[int]]:
    """The node, -1 where the kernel does not tell it, and its CPUs."""
    node = -1
    if pci_address:
        with suppress(OSError, ValueError), open(f"{sysfs}/bus/pci/devices/{pci_address}/numa_node") as file:
            node = int(file.read())
    if node < 0:
        return -1, []
    with suppress(OSError, ValueError), open(f"{sysfs}/devices/system/node/node{node}/cpulist") as file:
        return node, cpus_of(file.read())
    return node, []


def cpus_of(text: str) -> list[int]:
    """ "0-3,8" as the kernel writes it. Raises ValueError."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found += range(int(first), int(last or first) + 1)
    return found
