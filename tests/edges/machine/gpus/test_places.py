"""Near which CPUs are the GPUs? The driver is made up, and so is sysfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.config.job_spec import JobSpec
from supervisor.core.gpu_places import GpuPlace
from supervisor.edges.machine.gpus.node_gpus import NodeGpus
from supervisor.edges.machine.gpus.numa_nodes import cpus_of, numa_place
from tests.edges.machine.gpus.conftest import SOCKET
from tests.fakes.gpus import Gpus


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Two NUMA nodes; the first GPU is near the second one."""
    root = tmp_path / "sys"
    for node, cpus in (("0", "0-1"), ("1", "2-3,8")):
        folder = root / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
    for address, node in (("0000:01:00.0", "1"), ("0000:02:00.0", "0"), ("0000:03:00.0", "-1")):
        folder = root / f"bus/pci/devices/{address}"
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
    return root


async def places(gpus: Gpus, sysfs: Path, *visible: str) -> tuple[tuple[GpuPlace, ...], str]:
    node_gpus = NodeGpus(worker_socket=SOCKET, environment=gpus.environ(), sysfs=str(sysfs))
    node_gpus.process.answer_s = 20.0
    try:
        return await node_gpus.places(JobSpec("job", ("t.py",), visible_gpus=visible or None))
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
        (), "the workers are not bound: the kernel tells no NUMA node of their GPUs"
    )  # fmt: skip
    gpus.state.init_status = 9
    assert await places(gpus, sysfs) == ((), "the workers are not bound: NVML says Driver Not Loaded")


def test_lists_of_cpus_and_what_can_not_be_read(sysfs: Path) -> None:
    assert cpus_of("0-2,7,9-10\n") == [0, 1, 2, 7, 9, 10]
    assert cpus_of("\n") == []
    assert numa_place(str(sysfs), "0000:77:00.0") == (-1, [])
    assert numa_place(str(sysfs), "") == (-1, [])
