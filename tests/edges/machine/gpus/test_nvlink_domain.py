"""The domain of a node as the driver reports it: one, several, none, an error, no answer."""

from __future__ import annotations

import time

import pytest

from supervisor.edges.machine.gpus.nvlink_domain import NoDomainError, nvlink_domain
from tests.fakes.gpus import Gpus

ONES = "01010101-0101-0101-0101-010101010101"


@pytest.fixture
def node(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> Gpus:
    """Returns the GPUs of this node, for the process that asks."""
    for name, value in gpus.environment.items():
        monkeypatch.setenv(name, value)
    return gpus


def set_domains(gpus: Gpus, *numbers: int, clique: int = 0) -> None:
    gpus.state.devices = len(numbers)
    for index, number in enumerate(numbers):
        gpus[index].cluster[:] = [number] * 16
        gpus[index].clique = clique


@pytest.mark.parametrize("numbers", [(1,), (1, 1, 1, 1), (1, 0)])
async def test_the_domain_is_the_cluster_uuid(node: Gpus, numbers: tuple[int, ...]):
    set_domains(node, *numbers)
    assert await nvlink_domain() == ONES


async def test_a_driver_that_is_too_old_knows_no_domain(node: Gpus):
    set_domains(node, 1)
    node.state.old_driver = 1
    with pytest.raises(NoDomainError, match="NVML says Not Supported"):
        await nvlink_domain()


async def test_cliques_of_one_cluster_are_domains_of_their_own(node: Gpus):
    set_domains(node, 1, 1, clique=3)
    assert await nvlink_domain() == f"{ONES}.3"
    node[1].clique = 4
    with pytest.raises(NoDomainError, match="its GPUs belong to 2 domains"):
        await nvlink_domain()


@pytest.mark.parametrize(
    ("numbers", "why"),
    [
        ((), "its GPUs have no ClusterUUID"),
        ((0, 0), "its GPUs have no ClusterUUID"),
        ((1, 2), "its GPUs belong to 2 domains"),
    ],
)
async def test_why_there_is_none(node: Gpus, numbers: tuple[int, ...], why: str):
    set_domains(node, *numbers)
    with pytest.raises(NoDomainError) as caught:
        await nvlink_domain()
    assert str(caught.value) == why


async def test_a_driver_that_is_not_loaded(node: Gpus):
    node.state.init_status = 9
    with pytest.raises(NoDomainError, match="NVML says Driver Not Loaded"):
        await nvlink_domain()


async def test_a_driver_that_hangs_is_not_waited_for(node: Gpus):
    node.hang()
    began_s = time.monotonic()
    with pytest.raises(NoDomainError, match=r"NVML has not answered within 0\.5 s"):
        await nvlink_domain(timeout_s=0.5)
    assert time.monotonic() - began_s < 20
