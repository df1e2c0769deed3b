"""Does the real driver answer each question of the checks, how fast, by number and by UUID? (spec row 8)"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from typing import cast

import msgspec
import pytest

from supervisor.config.job_spec import JobSpec
from supervisor.core.gpu_memory import MIB, MemoryRules
from supervisor.core.node_check_facts import Health
from supervisor.edges.machine.gpus.device_probes import GpuProbe
from supervisor.edges.machine.gpus.node_gpus import NodeGpus

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]

SOCKET = "/nowhere/worker.sock"
SPEC = JobSpec("job", ("t.py",))
GIB = 1024 * MIB
HOLDS = """
import sys, torch
block = torch.empty(int(sys.argv[1]), dtype=torch.uint8, device="cuda")
block.fill_(1)
torch.cuda.synchronize()
print("up", flush=True)
sys.stdin.read()
"""


@pytest.fixture
async def node_gpus() -> AsyncGenerator[NodeGpus]:
    node_gpus = NodeGpus(worker_socket=SOCKET)
    await node_gpus.warm()
    yield node_gpus
    await node_gpus.aclose()


@contextmanager
def holder(used_bytes: int, **variables: str) -> Generator[subprocess.Popen[str]]:
    """Runs a process with that much memory on the first GPU, until the block ends."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(used_bytes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, **variables},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        try:
            yield process
        finally:
            process.kill()


async def test_each_question_is_answered_or_not_supported(node_gpus: NodeGpus) -> None:
    answer = await node_gpus.process.ask("fitness", visible=None)
    gpus = cast("list[list[object]]", answer["gpus"])
    assert gpus
    for name, uuid, is_lost, *words in gpus:
        print(f"{name} {uuid}: lost {is_lost}, action, ecc, remap failed, remap pending, links: {words}")
        assert str(uuid).startswith("GPU-")
        assert is_lost is False
    print("fabric:", (await node_gpus.process.ask("fabric"))["domains"])
    print("places:", await node_gpus.places(SPEC))


async def test_a_healthy_gpu_passes_and_a_round_of_checks_is_cheap(node_gpus: NodeGpus) -> None:
    probe = GpuProbe(node_gpus)
    await probe.look(SPEC)
    took_s: list[float] = []
    for _ in range(20):
        begun_s = time.perf_counter()
        found = await probe.look(SPEC)
        took_s.append(time.perf_counter() - begun_s)
        assert {each.health for each in found} == {Health.HEALTHY}, found
    print(f"a round of checks: median {sorted(took_s)[10] * 1000:.1f} ms, most {max(took_s) * 1000:.1f} ms")
    assert sorted(took_s)[10] < 0.1


async def test_visible_devices_by_number_and_by_uuid(node_gpus: NodeGpus) -> None:
    [[_, uuid, *_], *_] = cast("list[list[object]]", (await node_gpus.process.ask("fitness", visible=None))["gpus"])
    probe = GpuProbe(node_gpus)
    for name in ("0", str(uuid), str(uuid)[:12]):
        [found] = await probe.look(msgspec.structs.replace(SPEC, visible_gpus=(name,)))
        assert found.subject == "GPU 0"


async def test_a_stranger_is_named_with_its_bytes_and_left_alone(node_gpus: NodeGpus) -> None:
    with holder(2 * GIB) as stranger:
        report = await node_gpus.await_memory(SPEC, MemoryRules(0.5, 512 * MIB, 2.0), cgroups=())
        assert stranger.poll() is None
    print(report)
    assert not report.is_free
    named = [each for each in report.holders if each.pid == stranger.pid]
    assert named, "or the driver counts pids of another namespace, and the open device did not tell"
    assert named[0].user
    assert named[0].used_bytes is None or named[0].used_bytes > 2 * GIB


async def test_what_is_left_over_of_the_job_is_ended_and_its_memory_is_free_soon(node_gpus: NodeGpus) -> None:
    with holder(2 * GIB, HOLDFAST_JOB_ID="job", HOLDFAST_SOCKET=SOCKET) as left_over:
        report = await node_gpus.await_memory(SPEC, MemoryRules(30.0, 512 * MIB, 2.0), cgroups=())
        assert report.ended == (left_over.pid,)
        assert left_over.wait(timeout=30) == -9
    print(report)
    assert report.is_free
