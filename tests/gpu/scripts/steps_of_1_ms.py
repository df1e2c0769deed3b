"""What do heartbeats, sections and ping() cost? Steps of 1 ms, in turn with and without them (row 10).

Prints one line of JSON. DEVICE=cpu keeps a CPU busy instead of a GPU.
"""
# pyright: basic, reportPrivateImportUsage=false

import json
import math
import os
import random
import statistics
import sys
import time

import torch

from worker_client import RankMonitorClient, inprocess

DEVICE = os.environ["DEVICE"]
PAIRS, STEPS = int(sys.argv[1]), int(sys.argv[2])
STEP_S = 0.001
T_95 = 2.0  # Student's distribution, for 60 pairs or more; slightly more for fewer


def one_step(cycles: int) -> None:
    if DEVICE == "cuda":
        torch.cuda._sleep(cycles)
        torch.cuda.synchronize()
        return
    until = time.perf_counter() + STEP_S
    while time.perf_counter() < until:
        pass


def cycles_of_a_step() -> int:
    if DEVICE != "cuda":
        return 0
    began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(1_000_000)
    began.record()
    torch.cuda._sleep(10_000_000)
    ended.record()
    torch.cuda.synchronize()
    return int(10_000_000 * STEP_S * 1000 / began.elapsed_time(ended))


@inprocess.Wrapper()
def measure(call: inprocess.CallWrapper | None = None) -> None:
    assert call is not None
    monitor = RankMonitorClient()
    monitor.init_workload_monitoring()
    cycles = cycles_of_a_step()

    def plain() -> None:
        one_step(cycles)

    def watched() -> None:
        monitor.start_section("step")
        one_step(cycles)
        monitor.end_section("step")
        monitor.send_heartbeat()
        call.ping()

    def block(step) -> float:  # noqa: ANN001
        began = time.perf_counter()
        for _ in range(STEPS):
            step()
        return time.perf_counter() - began

    for step in (plain, watched):
        block(step)
    order = random.Random(0)
    shares: list[float] = []
    seconds: list[float] = []
    for _ in range(PAIRS):
        first_is_plain = order.random() < 0.5
        first, second = (plain, watched) if first_is_plain else (watched, plain)
        took = block(first), block(second)
        without, with_it = took if first_is_plain else took[::-1]
        shares.append(with_it / without - 1)
        seconds.append(without)
    mean = statistics.fmean(shares)
    half = T_95 * statistics.stdev(shares) / math.sqrt(len(shares))
    step_s = statistics.median(seconds) / STEPS
    print(json.dumps({"mean": mean, "from": mean - half, "to": mean + half, "step_s": step_s}), flush=True)
    monitor.shutdown_workload_monitoring()


measure()
