"""A wrapped function on a GPU, and its faults: exception, pending, sticky or aborts (rows 3 to 6).

With DEVICE=cpu it runs on Gloo without a GPU: that tests this script, but shows nothing about GPUs.
"""
# pyright: basic, reportPrivateImportUsage=false

import ctypes
import json
import os
import signal
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from worker_client import inprocess
from worker_client.inprocess.abort import AbortTorchDistributed
from worker_client.inprocess.health_check import CudaHealthCheck, HealthCheck
from worker_client.inprocess.state import FrozenState

RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
DEVICE = os.environ["DEVICE"]
BACKEND = "nccl" if DEVICE == "cuda" and WORLD_SIZE == 1 else "gloo"  # two ranks can't share a GPU under NCCL
WHAT, *MORE = sys.argv[1:]
FOR_EVER_S = 1e9
ITERATIONS_MAX = 9  # without pauses between them
ABORTS_A_CALL = 5  # more faults at once on one rank would need waits in between
FIRST_CYCLE = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
is_sick = False  # without a GPU, this plays an unusable context


def note(what: str, **more: object) -> None:
    line = json.dumps({"what": what, "rank": RANK, "pid": os.getpid(), "at": time.monotonic(), **more})
    descriptor = os.open(os.environ["TRACE"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


def pending(seconds: float) -> None:
    """Returns once the GPU is done: no signal or exception gets through before."""
    if DEVICE == "cuda":
        torch.cuda._sleep(min(int(seconds * cycles_a_second()), 2**62))
        note("pending")
        torch.cuda.synchronize()
        return
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    note("pending")
    ctypes.CDLL(None).sleep(ctypes.c_uint(min(int(seconds), 2**31)))
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def cycles_a_second() -> float:
    cycles = 10_000_000
    torch.cuda._sleep(cycles)
    torch.cuda.synchronize()
    began = time.perf_counter()
    torch.cuda._sleep(cycles)
    torch.cuda.synchronize()
    return cycles / (time.perf_counter() - began)


def await_replacement(iteration: int) -> None:
    """Starts the next iteration, from which the replacement of a lost rank takes part."""
    if dist.get_world_size() < WORLD_SIZE and iteration < ITERATIONS_MAX:
        time.sleep(2.0)
        raise ValueError("the replacement is waited for")


# --- exception: what a restart inside the process keeps ------------------------------------------------------------

compiled = torch.compile(lambda each: torch.relu(each @ each) + 1, backend="eager")
graphs: list[Any] = []  # a CUDA graph, its input and its output


def work() -> None:
    """Uses the same memory each time, so that the warm allocator needs no more from the driver."""
    for size in (256, 1024, 2048):
        compiled(torch.ones(size, size, device=DEVICE))
    if DEVICE != "cuda":
        return
    if not graphs:
        given = torch.zeros(1024, device=DEVICE)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = given * 2 + 1
        graphs.extend((graph, given, result))
    graph, given, result = graphs
    given.fill_(3)
    graph.replay()
    assert result.sum().item() == 7 * 1024
    torch.cuda.synchronize()


def kept() -> dict[str, object]:
    from torch._dynamo.utils import counters

    found: dict[str, object] = {"pid": os.getpid(), "compiled": counters["frames"]["total"]}
    if DEVICE == "cuda":
        from supervisor.edges.machine.gpus.driver import Driver

        context = ctypes.c_void_p()
        assert ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(context)) == 0
        driver = Driver()
        holders = [pid for device in driver.devices(None) for pid in driver.holders(device)]
        found["context"] = context.value
        found["processes"] = len(holders)
        found["asked_of_driver"] = torch.cuda.memory_stats()["num_device_alloc"]
    return found


@inprocess.Wrapper()
def fails_once(call: inprocess.CallWrapper | None = None) -> None:
    assert call is not None
    note("entered", iteration=call.iteration)
    dist.init_process_group(BACKEND)
    work()
    if call.iteration == 0:
        work()
    total = torch.ones(1, device=DEVICE)
    dist.all_reduce(total)
    assert total.item() == WORLD_SIZE
    note("up", iteration=call.iteration, kept=kept())
    if call.iteration == 0 and RANK == WORLD_SIZE - 1:
        note("fault")
        raise ValueError("by intention")
    dist.barrier()
    dist.destroy_process_group()


# --- pending: work of the GPU is under way as the restart comes ----------------------------------------------------


def waits_for_the_gpu(call: inprocess.CallWrapper | None = None) -> None:
    assert call is not None
    dist.init_process_group("gloo")
    dist.barrier()
    note("up", iteration=call.iteration)
    if call.iteration == 0 and FIRST_CYCLE:
        if RANK == 0:
            pending(FOR_EVER_S if MORE[0] == "ever" else float(MORE[0]))
        time.sleep(1.0)
        note("fault")
        raise ValueError("by intention")
    await_replacement(call.iteration)
    dist.barrier()
    dist.destroy_process_group()


# --- sticky: a context that can't be used any more -----------------------------------------------------------------


class Sick(HealthCheck):
    def __call__(self, state: FrozenState) -> FrozenState:
        if is_sick:
            raise RuntimeError("the context can't be used")
        return state


def break_context() -> None:
    """Raises, and makes every later use of the GPU raise."""
    global is_sick
    is_sick = True
    if DEVICE != "cuda":
        raise RuntimeError("the context is broken")
    if MORE[0] == "assert":
        torch.zeros(4, device=DEVICE)[torch.tensor([9], device=DEVICE)].sum()
    else:
        storage = torch._C._construct_storage_from_data_pointer(0xDEAD0000, torch.device("cuda", 0), 4096)
        nothing: Any = torch.empty(0, device=DEVICE)
        nothing.set_(storage, 0, (1024,)).sum()
    torch.cuda.synchronize()
    raise AssertionError("the GPU went on")


def breaks_its_context(call: inprocess.CallWrapper | None = None) -> None:
    assert call is not None
    torch.ones(1, device=DEVICE).sum().item()
    dist.init_process_group("gloo")
    dist.barrier()
    note("up", iteration=call.iteration)
    if call.iteration == 0 and RANK == 0:
        note("fault")
        break_context()
    await_replacement(call.iteration)
    dist.barrier()
    dist.destroy_process_group()


# --- aborts: the same group again and again ------------------------------------------------------------------------


def aborts(call: inprocess.CallWrapper | None = None) -> None:
    assert call is not None
    dist.init_process_group(BACKEND)
    value = torch.ones(1 << 20, device=DEVICE)
    dist.all_reduce(value)
    if call.iteration == ABORTS_A_CALL:
        dist.destroy_process_group()
        return
    if DEVICE == "cuda":
        torch.cuda._sleep(50_000_000)
    under_way = dist.all_reduce(value, async_op=True)
    assert under_way is not None
    raise ValueError("by intention")


def count_what_is_held(calls: int) -> None:
    for number in range(calls):
        inprocess.Wrapper(abort=AbortTorchDistributed(torch_fr_trace_path=MORE[1]))(aborts)()
        used = 0
        if DEVICE == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            free, total = torch.cuda.mem_get_info()
            used = total - free
        note(
            "held",
            call=number,
            threads=len(os.listdir("/proc/self/task")),
            descriptors=len(os.listdir("/proc/self/fd")),
            used_bytes=used,
        )


def main() -> None:
    if DEVICE == "cuda":
        torch.cuda.set_device(0)
        torch.zeros(1, device="cuda")
    match WHAT:
        case "exception":
            fails_once()
        case "pending":
            soft_s, hard_s = (3, 6) if MORE[0] == "ever" else (30, 45)
            inprocess.Wrapper(soft_timeout=timedelta(seconds=soft_s), hard_timeout=timedelta(seconds=hard_s))(
                waits_for_the_gpu
            )()
        case "sticky":
            check = CudaHealthCheck(timedelta(seconds=10)) if DEVICE == "cuda" else Sick()
            inprocess.Wrapper(health_check=check)(breaks_its_context)()
        case "aborts":
            count_what_is_held(int(MORE[0]))
    note("returned")


main()
