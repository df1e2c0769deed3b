"""Is the memory of the job's GPUs awaited: for how long, on which GPUs, and which holders are named and ended?"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from supervisor.config.job_spec import JobSpec
from supervisor.core.gpu_memory import Holder, MemoryReport, MemoryRules
from supervisor.edges.machine.gpus.node_gpus import NodeGpus
from tests.edges.machine.gpus.conftest import SOCKET
from tests.fakes.gpus import MIB, Gpus

TOLERANCE = 512 * MIB
SLEEP = "import sys; print('up', flush=True); sys.stdin.read()"


def spec(*visible: str, local_world_size: int = 2) -> JobSpec:
    return JobSpec("job", ("t.py",), local_world_size=local_world_size, visible_gpus=visible or None)


async def wait(node_gpus: NodeGpus, of: JobSpec | None = None, timeout_s: float = 20.0) -> MemoryReport:
    rules = MemoryRules(timeout_s, TOLERANCE, 2.0)
    return await node_gpus.await_memory(of or spec(), rules, cgroups=())


async def wait_while(node_gpus: NodeGpus, happens: Callable[[], Coroutine[object, object, None]]) -> MemoryReport:
    reports: list[MemoryReport] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(happens)
        reports.append(await wait(node_gpus))
    return reports[0]


@contextmanager
def holder(**variables: str) -> Generator[subprocess.Popen[str]]:
    """Runs a process for the duration of the block."""
    with subprocess.Popen(
        [sys.executable, "-c", SLEEP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, **variables},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        try:
            yield process
        finally:
            process.kill()


async def test_free_memory_is_not_waited_for(node_gpus: NodeGpus, gpus: Gpus) -> None:
    gpus[0].used = gpus[1].used = TOLERANCE
    report = await wait(node_gpus)
    assert report.is_free
    assert [(each.gpu, each.first_bytes, each.last_bytes) for each in report.gpus] == [
        ("GPU 0", TOLERANCE, TOLERANCE), ("GPU 1", TOLERANCE, TOLERANCE),
    ]  # fmt: skip
    assert report.looks == 1
    assert report.holders == ()


@pytest.mark.alone
async def test_the_wait_ends_soon_after_the_memory_is_free_although_no_event_tells(
    node_gpus: NodeGpus, gpus: Gpus
) -> None:
    await node_gpus.warm()
    gpus[1].used = 40 * 1024 * MIB
    freed_at_s = 0.0

    async def free_it() -> None:
        nonlocal freed_at_s
        await anyio.sleep(0.6)
        gpus[1].used, freed_at_s = 0, time.monotonic()

    report = await wait_while(node_gpus, free_it)
    assert report.is_free
    assert time.monotonic() - freed_at_s < 0.5, "nobody waits for two seconds"
    assert report.gpus[1].most_bytes == 40 * 1024 * MIB
    assert report.looks < 200


async def test_one_of_several_gpus_that_stays_above_the_limit_is_named_with_its_holder(
    node_gpus: NodeGpus, gpus: Gpus
) -> None:
    with holder() as stranger:
        gpus[1].hold((stranger.pid, 3000 * MIB))
        report = await wait(node_gpus, timeout_s=0.3)
        assert stranger.poll() is None, "a stranger is left alone"
    assert not report.is_free
    [named] = report.holders
    assert (named.pid, named.gpu, named.used_bytes) == (stranger.pid, "GPU 1", 3000 * MIB)
    assert named.name.startswith("python")
    assert named.user
    assert report.ended == ()


async def test_the_end_of_a_holder_is_an_event(node_gpus: NodeGpus, gpus: Gpus) -> None:
    await node_gpus.warm()
    with holder() as stranger:
        gpus[0].hold((stranger.pid, 3000 * MIB))

        async def end_it() -> None:
            await anyio.sleep(0.3)
            stranger.kill()
            gpus[0].hold()

        report = await wait_while(node_gpus, end_it)
        assert report.is_free


async def test_what_is_left_over_of_the_job_is_ended(node_gpus: NodeGpus, gpus: Gpus) -> None:
    ours = {"HOLDFAST_JOB_ID": "job", "HOLDFAST_SOCKET": SOCKET}
    others = {**ours, "HOLDFAST_SOCKET": "/another/worker.sock"}
    with holder(**ours) as left_over, holder(**others) as of_another_run:
        gpus[0].hold((left_over.pid, 3000 * MIB), (of_another_run.pid, 0))
        report = await wait(node_gpus, timeout_s=0.2)
        assert report.ended == (left_over.pid,)
        assert left_over.wait(timeout=20) == -9
        assert of_another_run.poll() is None


async def test_in_a_container_the_open_device_tells_who_it_is(node_gpus: NodeGpus, gpus: Gpus, tmp_path: Path) -> None:
    """The driver reports the host's pids; this one matches no process here."""
    device = tmp_path / "nvidia0"
    device.touch()
    with device.open(), holder() as other:
        gpus[0].hold((2**22 + 1, 3000 * MIB))
        report = await wait(node_gpus, timeout_s=0.2)
        assert other.poll() is None
    assert Holder(2**22 + 1, "GPU 0", 3000 * MIB) in report.holders
    assert os.getpid() in {each.pid for each in report.holders}
    assert other.pid not in {each.pid for each in report.holders}


async def test_a_gpu_that_can_not_be_read_is_not_waited_for(node_gpus: NodeGpus, gpus: Gpus) -> None:
    gpus[0].used, gpus[0].memory_status = 40 * 1024 * MIB, 15
    report = await wait(node_gpus)
    assert report.is_free
    assert report.gpus[0].last_bytes is None


async def test_an_older_driver_has_no_second_kind_of_memory_info(node_gpus: NodeGpus, gpus: Gpus) -> None:
    gpus.state.old_driver = 1
    gpus[0].used = 3000 * MIB
    report = await wait(node_gpus, timeout_s=0.05)
    assert report.gpus[0].last_bytes == 3000 * MIB
    assert not report.is_free


async def test_only_the_jobs_own_gpus_are_waited_for(node_gpus: NodeGpus, gpus: Gpus) -> None:
    gpus.state.devices = 4
    gpus[0].used = gpus[3].used = 40 * 1024 * MIB
    by_uuid = gpus[2].uuid.decode()
    for free in (spec("1", "2"), spec(by_uuid), spec(by_uuid[:8], "1"), spec("2", "9", "0"), spec("")):
        assert (await wait(node_gpus, free, timeout_s=0.05)).is_free, free.visible_gpus
    for busy in (spec("3", "1"), spec(gpus[3].uuid.decode()), spec(local_world_size=1)):
        assert not (await wait(node_gpus, busy, timeout_s=0.05)).is_free, busy.visible_gpus


async def test_a_slice_of_a_gpu_is_waited_for_alone(node_gpus: NodeGpus, gpus: Gpus) -> None:
    gpus[0].migs, gpus[0].used = 2, 40 * 1024 * MIB
    gpus[0].mig[0].uuid, gpus[0].mig[1].uuid = b"MIG-free", b"MIG-busy"
    gpus[0].mig[1].used = 3000 * MIB
    assert (await wait(node_gpus, spec("MIG-free"), timeout_s=0.05)).is_free
    report = await wait(node_gpus, spec("MIG-busy"), timeout_s=0.05)
    assert [(each.gpu, each.last_bytes) for each in report.gpus] == [("MIG-busy", 3000 * MIB)]
    assert not report.is_free


async def test_a_driver_that_hangs_is_not_waited_for_and_another_process_asks_the_next_time(
    node_gpus: NodeGpus, gpus: Gpus
) -> None:
    await node_gpus.warm()
    process = node_gpus.process
    first, process.answer_s = process.pid, 0.5
    gpus.hang()
    before_s = time.monotonic()
    report = await wait(node_gpus, timeout_s=0.1)
    assert report.unknown == "NVML has not answered within 0.5 s"
    assert time.monotonic() - before_s < 20
    assert process.pid is None
    gpus.hang(until_released=False)
    process.answer_s = 20.0
    assert (await wait(node_gpus)).is_free
    assert process.pid not in (None, first)


async def test_without_a_driver_nothing_is_started(tmp_path: Path) -> None:
    node_gpus = NodeGpus(worker_socket=SOCKET, environment={"PATH": os.environ["PATH"]}, dev=str(tmp_path))
    if node_gpus.are_there():
        return  # this machine has a driver
    assert await wait(node_gpus) == MemoryReport(is_free=True)
    await node_gpus.warm()
    assert node_gpus.process.pid is None


async def test_a_driver_that_does_not_start_is_told(node_gpus: NodeGpus, gpus: Gpus) -> None:
    gpus.state.init_status = 9
    assert (await wait(node_gpus)).unknown == "NVML says Driver Not Loaded"


async def test_nobody_looks_on_for_a_wait_that_was_given_up(node_gpus: NodeGpus, gpus: Gpus) -> None:
    await node_gpus.warm()
    gpus[0].used = 3000 * MIB
    with anyio.move_on_after(0.2):
        await wait(node_gpus)
    assert (await wait(node_gpus, spec("1"))).is_free  # the next question was answered
    calls = gpus.calls
    await anyio.sleep(0.3)
    assert gpus.calls == calls
