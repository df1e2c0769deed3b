"""The domain of a node, as a stand-in for nvidia-ml-py says it: one domain, several, none, an error, no answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.edges.machine.gpus import nvlink_probe
from supervisor.edges.machine.gpus.nvlink_domain import PROBE, NoDomainError, nvlink_domain

Write = Callable[..., None]

NVML = """
import ctypes, time
byref = ctypes.byref
UUIDS = {uuids!r}
class NVMLError(Exception): pass
class c_nvmlGpuFabricInfo_t(ctypes.Structure):
    _fields_ = [("clusterUuid", ctypes.c_uint8 * 16)]
c_nvmlGpuFabricInfo_v2_t = c_nvmlGpuFabricInfo_t
def nvmlInit():
    {init}
def nvmlDeviceGetCount(): return len(UUIDS)
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetGpuFabricInfoV(device, info):
    {newer}
    nvmlDeviceGetGpuFabricInfo(device, info)
def nvmlDeviceGetGpuFabricInfo(device, info):
    info._obj.clusterUuid[:] = bytes([UUIDS[device]] * 16)
"""
ONES = "01010101-0101-0101-0101-010101010101"


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes the stand-in, which the probe finds before the real one."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def write(*uuids: int, init: str = "pass", newer: str = "pass") -> None:
        (tmp_path / "pynvml.py").write_text(NVML.format(uuids=uuids, init=init, newer=newer))

    return write


@pytest.mark.parametrize(
    ("uuids", "newer"), [((1,), "pass"), ((1, 1, 1, 1), "pass"), ((1, 0), "pass"), ((1,), "raise NVMLError('unknown')")]
)
async def test_the_domain_is_the_cluster_uuid(nvml: Write, uuids: tuple[int, ...], newer: str):
    nvml(*uuids, newer=newer)
    assert Path(nvlink_probe.__file__) == PROBE
    assert await nvlink_domain() == ONES


@pytest.mark.parametrize(
    ("uuids", "init", "why"),
    [
        ((), "pass", "its GPUs have no ClusterUUID"),
        ((0, 0), "pass", "its GPUs have no ClusterUUID"),
        ((1, 2), "pass", "its GPUs belong to 2 domains"),
        ((1,), "raise NVMLError('Driver Not Loaded')", "NVML says Driver Not Loaded"),
        ((1,), "import no_such_module", "NVML says No module named 'no_such_module'"),
    ],
)
async def test_why_there_is_none(nvml: Write, uuids: tuple[int, ...], init: str, why: str):
    nvml(*uuids, init=init)
    with pytest.raises(NoDomainError) as caught:
        await nvlink_domain()
    assert str(caught.value) == why


async def test_a_driver_that_hangs_is_not_waited_for(nvml: Write):
    nvml(1, init="time.sleep(60)")
    began_s = time.monotonic()
    with pytest.raises(NoDomainError, match=r"NVML does not answer within 0\.5 s"):
        await nvlink_domain(timeout_s=0.5)
    assert time.monotonic() - began_s < 20
