"""Is work done in order, one item after another, and is its end known?"""

from __future__ import annotations

import anyio
import anyio.lowlevel

from supervisor.programs.attribution.work_queue import WorkQueue


async def test_work_is_done_in_order_and_its_end_is_known():
    line: WorkQueue[int] = WorkQueue(most=2)
    done: list[int] = []
    gate = anyio.Event()

    async def work(item: int) -> None:
        await gate.wait()
        done.append(item)

    await line.emptied()
    line.put(1)
    assert not line.is_full
    line.put(2)
    assert line.is_full
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.serve, work)
            await anyio.lowlevel.checkpoint()
            line.put(3)
            gate.set()
            await line.emptied()
            assert done == [1, 2, 3]
            line.put(4)
            await line.emptied()
            assert done == [1, 2, 3, 4]
            tasks.cancel_scope.cancel()


async def test_several_places_work_at_the_same_time_but_not_on_the_same_key():
    line: WorkQueue[str] = WorkQueue(most=10, places=2, key=lambda item: item[0])
    begun: list[str] = []
    gates = {name: anyio.Event() for name in ("a1", "a2", "b1", "c1")}

    async def work(item: str) -> None:
        begun.append(item)
        await gates[item].wait()

    for item in gates:
        line.put(item)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.serve, work)
            await anyio.wait_all_tasks_blocked()
            assert begun == ["a1", "b1"]
            gates["b1"].set()
            await anyio.wait_all_tasks_blocked()
            assert begun == ["a1", "b1", "c1"]  # a2 waits for a1, and delays nobody
            gates["a1"].set()
            await anyio.wait_all_tasks_blocked()
            assert begun == ["a1", "b1", "c1", "a2"]
            for gate in gates.values():
                gate.set()
            await line.emptied()
            tasks.cancel_scope.cancel()
