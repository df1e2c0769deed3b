"""Rows: what do GPUs with free memory add to a restart, and how soon do new workers start once memory is freed?

The GPUs are made up (tests/fakes/gpus.c, under the real nvidia-ml-py), so that any machine can measure the rows. The
time that a real driver needs for its answers comes on top.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.benchmarks.bench import EXIT_LIMIT_S, RECOVERY_LIMIT_S, START_LIMIT_S, Bench, seconds, settle
from tests.benchmarks.launch import Run, RunFailedError
from tests.benchmarks.rows import Group, Row, Target, Unit
from tests.benchmarks.speed_restart import restart_s
from tests.benchmarks.subjects import JobOptions, Subject
from tests.fakes.gpus import MIB, Gpus, build

GPUS = 8
HELD_S = 1.0  # after the fault: the old workers are gone by then, and memory is checked less often


def measure_gpu_memory(bench: Bench) -> list[Row]:
    free = Row(
        "restart_gpus_free",
        Group.SPEED,
        f"{GPUS} GPUs (made up) that are well and free: what checking and awaiting them adds to a restart",
        Unit.SECONDS,
        Target(at_most=0.02),
        notes=["Each sample is the difference of two restarts, one after the other, with the GPUs and without."],
    )
    freed = Row(
        "restart_gpus_freed",
        Group.SPEED,
        f"memory of {GPUS} GPUs (made up) freed {HELD_S:g} s after the fault → first line of the last of 4 new workers",
        Unit.SECONDS,
        Target(at_most=0.05),
    )
    if shutil.which("cc") is None:
        return []
    counts = bench.counts(9, only=("holdfast",))
    with _gpus() as gpus:

        def once(subject: Subject) -> Mapping[str, float]:
            without_s = _restart_s(subject, {})
            return {free.key: _restart_s(subject, gpus.environment) - without_s, freed.key: _freed_s(subject, gpus)}

        bench.fill([free, freed], counts, once)
    return [free, freed]


@contextmanager
def _gpus() -> Generator[Gpus]:
    with tempfile.TemporaryDirectory(prefix="gpus-") as name:
        folder = Path(name)
        yield Gpus(folder, build(folder), count=GPUS)


def _restart_s(subject: Subject, variables: dict[str, str]) -> float:
    with Run(subject, "restart", JobOptions(), variables=variables) as run:
        return restart_s(run, ready="ready", recovered="first_line")


def _freed_s(subject: Subject, gpus: Gpus) -> float:
    _hold(gpus, 40 * 1024 * MIB)
    try:
        with Run(subject, "restart", JobOptions(), variables=gpus.environment) as run:
            run.await_events("ready", run.options.world_size, cycle=0, limit_s=START_LIMIT_S)
            settle()
            run.go()
            run.await_events("fault", 1, limit_s=START_LIMIT_S)
            run.take_until(time.monotonic() + HELD_S)
            if any(event.cycle for event in run.events):
                raise RunFailedError("the restart did not wait for the memory")
            freed_ns = time.monotonic_ns()
            _hold(gpus, 0)
            back = run.await_recovery("first_line", limit_s=RECOVERY_LIMIT_S)
            if code := run.await_exit(limit_s=EXIT_LIMIT_S):
                raise RunFailedError(f"exit code {code} after the restart\n{run.output_tail()}")
            return seconds(freed_ns, max(event.at_ns for event in back))
    finally:
        _hold(gpus, 0)


def _hold(gpus: Gpus, used_bytes: int) -> None:
    for number in range(GPUS):
        gpus[number].used = used_bytes
