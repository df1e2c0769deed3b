"""What happens to questions to a process that ends, and to the next question?"""

from __future__ import annotations

import os
import signal
import time
from typing import cast

import anyio
import anyio.lowlevel
import pytest

from supervisor.edges.machine.gpus.driver import Fitness
from supervisor.edges.machine.gpus.gpu_process import GpuProcess, SilentError
from supervisor.edges.machine.gpus.node_gpus import NodeGpus
from supervisor.ports import timed_waits
from tests.fakes.gpus import Gpus


@pytest.fixture
def process(node_gpus: NodeGpus) -> GpuProcess:
    return node_gpus.process


async def test_it_starts_with_the_first_question_and_answers_many(process: GpuProcess) -> None:
    assert process.pid is None
    answers: list[dict[str, object]] = []

    async def ask() -> None:
        answers.append(await process.ask("fabric"))

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(ask)
    assert answers == [{"id": each["id"], "domains": [["", 0], ["", 0]]} for each in answers]
    assert len({each["id"] for each in answers}) == 5


async def test_what_the_driver_says_of_a_gpu(process: GpuProcess, gpus: Gpus) -> None:
    gpus[1].action, gpus[1].ecc_errors, gpus[1].remap_pending, gpus[1].links_up = 1, 2, 1, 0b1011
    await process.warm()
    gpus.report_xid(0, 79)
    answer = await process.ask("fitness", visible=None)
    well = Fitness("GPU 0", gpus[0].uuid.decode(), False, "", 0, False, False, links=(True,) * 4)
    ill = Fitness("GPU 1", gpus[1].uuid.decode(), False, "gpu reset", 2, False, True, links=(True, True, False, True))
    assert answer["gpus"] == [[*each[:-1], list(each[-1])] for each in (well, ill)]
    assert process.xids == {(gpus[0].uuid.decode(), 79)}
    process.xids.clear()
    await process.ask("fitness", visible=["1"])
    assert process.xids == set(), "each event is told once"
    gpus[0].action_status = gpus[0].ecc_status = 3
    found = cast("list[list[object]]", (await process.ask("fitness", visible=["0"]))["gpus"])
    assert found[0][3:5] == [None, None], "not supported"
    gpus[0].is_lost = 1
    assert (await process.ask("fitness", visible=None))["lost"] == [["GPU 0", gpus[0].uuid.decode()]]


async def test_a_process_that_is_killed_is_replaced(process: GpuProcess, gpus: Gpus) -> None:
    await process.warm()
    first = process.pid
    assert first is not None
    gpus[0].used = 1 << 40
    limits = {"tolerance_bytes": 0, "timeout_s": 60, "look_s": 1, "at_most": 0}

    async def kill() -> None:
        calls = gpus.calls
        while gpus.calls < calls + 20:  # noqa: ASYNC110 - another process counts
            await anyio.sleep(0.005)
        os.kill(first, signal.SIGKILL)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kill)
        with pytest.raises(SilentError, match="the process that asks NVML has ended with -9"):
            await process.ask("memory", takes_s=60, visible=None, dev="/dev", job=("", "", ()), **limits)
    assert "domains" in await process.ask("fabric")
    assert process.pid != first


async def test_a_driver_that_crashes_costs_its_answer_alone(process: GpuProcess, gpus: Gpus) -> None:
    assert "domains" in await process.ask("fabric")
    gpus.state.crashes = 1
    with pytest.raises(SilentError, match="the process that asks NVML has ended with -6"):
        await process.ask("fitness", visible=None)
    gpus.state.crashes = 0
    assert "domains" in await process.ask("fabric")


async def test_a_driver_that_counts_wrongly(process: GpuProcess, gpus: Gpus) -> None:
    gpus.state.counted_more = 1000
    answer = await process.ask("fitness", visible=None)
    assert [each[0] for each in cast("list[list[object]]", answer["gpus"])] == ["GPU 0", "GPU 1"]
    gpus.state.counted_more = 4_000_000_000
    process.answer_s = 0.5
    with pytest.raises(SilentError, match=r"has not answered within 0\.5 s"):
        await process.ask("fitness", visible=None)
    gpus.state.counted_more, process.answer_s = 0, 20.0
    assert "domains" in await process.ask("fabric")


async def test_a_question_that_can_not_be_understood_costs_its_answer_alone(process: GpuProcess) -> None:
    with pytest.raises(SilentError, match="NVML says"):
        await process.ask("memory", visible=None)
    with pytest.raises(SilentError, match="NVML says"):
        await process.ask("no such question")
    assert "domains" in await process.ask("fabric")


async def test_a_process_that_can_not_start_is_told() -> None:
    process = GpuProcess(environment={"PYTHONHOME": "/nowhere"}, answer_s=20.0)
    with pytest.raises(SilentError, match=r"has ended with|can't be asked"):
        await process.ask("ready")
    await process.aclose()


@pytest.mark.alone
@pytest.mark.parametrize(
    ("stopped_s", "more_s"),
    [pytest.param(1.5, 0.0, id="beyond the deadline"), pytest.param(0.9, 0.3, id="for most of the time")],
)
async def test_time_in_which_this_process_was_stopped_does_not_count(
    process: GpuProcess, monkeypatch: pytest.MonkeyPatch, stopped_s: float, more_s: float
) -> None:
    monkeypatch.setattr(timed_waits, "TURN_EVERY_S", 0.1)
    monkeypatch.setattr(timed_waits, "PAUSED_S", 0.1)
    await process.warm()
    pid = process.pid
    assert pid is not None
    process.answer_s = 1.0
    os.kill(pid, signal.SIGSTOP)

    async def stop() -> None:
        for _ in range(10):  # until it is asked
            await anyio.lowlevel.checkpoint()
        time.sleep(stopped_s)  # noqa: ASYNC251 - as SIGSTOP does
        await anyio.sleep(more_s)
        os.kill(pid, signal.SIGCONT)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop)
        assert "domains" in await process.ask("fabric")
    assert process.pid == pid
