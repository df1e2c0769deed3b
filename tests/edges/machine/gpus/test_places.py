"""Which CPUs are near the GPUs? The driver and sysfs are simulated."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from supervisor.config.job_spec import JobSpec
from supervisor.core.gpu_affinity import GpuPlace
from supervisor.edges.machine.gpus.node_gpus import NodeGpus
from supervisor.edges.machine.gpus.numa_nodes import cpus_of, node_cpus, node_numbers, numa_node, structure
from tests.edges.machine.gpus.conftest import SOCKET
from tests.fakes.gpus import Gpus

ALL = frozenset(range(16))


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Makes two NUMA nodes; the first GPU is near the second one."""
    root = tmp_path / "sys"
    for node, cpus in (("0", "0-1"), ("1", "2-3,8")):
        folder = root / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
    for address, node in (("0000:01:00.0", "1"), ("0000:02:00.0", "0"), ("0000:03:00.0", "-1")):
        folder = root / f"bus/pci/devices/{address}"
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
    for cpu, core, package, cache in ((2, "2-3", "0", "2-3"), (3, "2-3", "0", "2-3"), (8, "8", "0", "8"),
                                      (0, "0", "0", "0-1"), (1, "1", "0", "0-1")):  # fmt: skip
        folder = root / f"devices/system/cpu/cpu{cpu}"
        (folder / "topology").mkdir(parents=True)
        (folder / "topology/core_cpus_list").write_text(f"{core}\n")
        (folder / "topology/physical_package_id").write_text(f"{package}\n")
        for index, (level, shared) in enumerate((("1", str(cpu)), ("3", cache))):
            (folder / f"cache/index{index}").mkdir(parents=True)
            (folder / f"cache/index{index}/level").write_text(f"{level}\n")
            (folder / f"cache/index{index}/shared_cpu_list").write_text(f"{shared}\n")
    return root


async def places(
    gpus: Gpus, sysfs: Path, *visible: str, mode: str = "node", allowed: frozenset[int] = ALL, by_speed: bool = False
) -> tuple[tuple[GpuPlace, ...], str]:
    node_gpus = NodeGpus(worker_socket=SOCKET, environment=gpus.environ(), sysfs=str(sysfs), cpus=allowed)
    node_gpus.process.answer_s = 20.0
    spec = JobSpec("job", ("t.py",), visible_gpus=visible or None, numa_binding=mode, gpus_by_bus=not by_speed)
    try:
        return await node_gpus.places(spec)
    finally:
        await node_gpus.aclose()


async def test_each_gpu_is_near_the_cpus_that_the_kernel_names(gpus: Gpus, sysfs: Path) -> None:
    gpus.state.devices = 3
    found, why_not = await places(gpus, sysfs)
    assert found == (GpuPlace("GPU 0", 1, (2, 3, 8)), GpuPlace("GPU 1", 0, (0, 1)), GpuPlace("GPU 2"))
    assert why_not == ""
    found, _ = await places(gpus, sysfs, "1", gpus[0].uuid.decode())
    assert [each.gpu for each in found] == ["GPU 1", "GPU 0"]


async def test_why_nothing_is_bound(gpus: Gpus, sysfs: Path) -> None:
    assert await places(gpus, sysfs, "2") == (
        (), "the workers are not bound: the kernel reports no NUMA node for their GPUs"
    )  # fmt: skip
    gpus.state.init_status = 9
    assert await places(gpus, sysfs) == ((), "the workers are not bound: NVML says Driver Not Loaded")


async def test_torchruns_other_modes_are_read_from_the_cpus_themselves(gpus: Gpus, sysfs: Path) -> None:
    def cpus(found: tuple[tuple[GpuPlace, ...], str]) -> list[tuple[int, ...]]:
        return [each.cpus for each in found[0]]

    socket, _ = await places(gpus, sysfs, mode="socket")
    assert socket == tuple(GpuPlace(f"GPU {gpu}", 1 - gpu, (0, 1, 2, 3, 8), spans_nodes=True) for gpu in (0, 1))
    assert cpus(await places(gpus, sysfs, mode="exclusive")) == [(2, 3, 8), (0, 1)]
    assert cpus(await places(gpus, sysfs, "0", "0", mode="exclusive")) == [(2, 3), (8,)]
    assert cpus(await places(gpus, sysfs, mode="core-complex")) == [(2, 3), (0, 1)]
    only = frozenset({0, 8})
    assert cpus(await places(gpus, sysfs, mode="core-complex", allowed=only)) == [(8,), (0,)]
    _, why_not = await places(gpus, sysfs, mode="exclusive", allowed=frozenset({8}))
    assert why_not == (
        "the workers are not bound: of NUMA node 0, 0 cores may be used, fewer than there are GPUs near it (1)"
    )


async def test_nothing_is_bound_to_a_gpu_that_may_be_another_one(gpus: Gpus, sysfs: Path) -> None:
    same, _ = await places(gpus, sysfs, by_speed=True)
    assert [each.gpu for each in same] == ["GPU 0", "GPU 1"], "of one model, CUDA counts them as the driver does"
    gpus[1].model = 1
    assert await places(gpus, sysfs, by_speed=True) == (
        (),
        "the workers are not bound: this node has GPUs of several models (Fast GPU, Slow GPU), and CUDA counts them by "
        "speed; set CUDA_DEVICE_ORDER=PCI_BUS_ID",
    )
    assert len((await places(gpus, sysfs))[0]) == 2, "PCI_BUS_ID"
    named, _ = await places(gpus, sysfs, gpus[1].uuid.decode(), by_speed=True)
    assert [each.gpu for each in named] == ["GPU 1"], "a UUID means one GPU"


def test_lists_of_cpus_and_what_can_not_be_read(sysfs: Path) -> None:
    assert cpus_of("0-2,7,9-10\n") == [0, 1, 2, 7, 9, 10]
    assert cpus_of("\n") == []
    assert numa_node(str(sysfs), "0000:77:00.0") == -1
    assert numa_node(str(sysfs), "") == -1
    assert node_numbers(str(sysfs)) == [0, 1]
    assert node_cpus(str(sysfs), 7) == []
    assert structure(str(sysfs), [4, 5]) == (-1, [[4], [5]], []), "what the kernel does not tell"
    shutil.rmtree(sysfs / "devices/system/node/node1")
    assert numa_node(str(sysfs), "0000:77:00.0") == 0, "there is no other"
