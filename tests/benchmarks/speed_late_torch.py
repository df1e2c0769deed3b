"""Rows: cold start and restart of scripts that import torch through their own package, or only when they train."""

from __future__ import annotations

import time
from collections.abc import Mapping

from tests.benchmarks.bench import EXIT_LIMIT_S, RECOVERY_LIMIT_S, START_LIMIT_S, Bench, seconds
from tests.benchmarks.launch import Run, RunFailedError
from tests.benchmarks.rows import Group, Row, Target, Unit
from tests.benchmarks.speed_restart import restart_s
from tests.benchmarks.subjects import JobOptions, Subject

YOUNG = JobOptions(arguments=("--young",))
WARM_AFTER_S = 4.0  # a load that runs beside the workers has ended by then


def measure_package(bench: Bench) -> list[Row]:
    start = Row(
        "cold_start_package",
        Group.SPEED,
        "cold start, torch comes through the script's own package: the command → first gloo barrier of 4 workers",
        Unit.SECONDS,
        Target(at_most=1.6, share_of={"torchrun_tuned": 1 / 3}),
    )
    young = Row(
        "restart_package",
        Group.SPEED,
        "restart of the same: rank 1 of 4 kills itself 0.5 s after its start → the new workers' gloo barrier",
        Unit.SECONDS,
        Target(at_most=0.1, share_of={"torchrun_tuned": 1 / 20}),
    )

    def once(subject: Subject) -> Mapping[str, float]:
        with Run(subject, "restart_package", JobOptions()) as run:
            first = run.await_events("barrier", 4, cycle=0, limit_s=START_LIMIT_S)
            started_s = seconds(run.launched_ns, max(event.at_ns for event in first))
        return {start.key: started_s, young.key: _young_s(subject, "restart_package")}

    bench.fill([start, young], _counts(bench), once)
    return [start, young]


def measure_lazy(bench: Bench) -> list[Row]:
    young = Row(
        "restart_lazy",
        Group.SPEED,
        "restart, torch is imported under an if: rank 1 of 4 kills itself 0.5 s after its start → gloo barrier",
        Unit.SECONDS,
        Target(at_most=1.5, share_of={"torchrun_tuned": 1 / 2}),
    )
    warm = Row(
        "restart_lazy_warm",
        Group.SPEED,
        "the same, the fault some seconds after the first barrier",
        Unit.SECONDS,
        Target(at_most=0.1, share_of={"torchrun_tuned": 1 / 20}),
    )

    def once(subject: Subject) -> Mapping[str, float]:
        young_s = _young_s(subject, "restart_lazy")
        with Run(subject, "restart_lazy", JobOptions()) as run:
            run.await_events("barrier", 4, cycle=0, limit_s=START_LIMIT_S)
            time.sleep(WARM_AFTER_S)
            return {young.key: young_s, warm.key: restart_s(run, ready="barrier", recovered="barrier")}

    bench.fill([young, warm], _counts(bench), once)
    return [young, warm]


def _counts(bench: Bench) -> dict[str, int]:
    return {**bench.counts(3, only=("torchrun_tuned", "reference")), "holdfast": bench.runs(9)}


def _young_s(subject: Subject, workload: str) -> float:
    """Returns the time from the death of a rank started 0.5 s before to the last new worker's barrier."""
    with Run(subject, workload, YOUNG) as run:
        fault = run.await_events("fault", 1, limit_s=START_LIMIT_S)[0]
        back = run.await_recovery("barrier", limit_s=RECOVERY_LIMIT_S)
        code = run.await_exit(limit_s=EXIT_LIMIT_S)
        if code:
            raise RunFailedError(f"{run.subject.label}: exit code {code} after the restart\n{run.output_tail()}")
        return seconds(fault.at_ns, max(event.at_ns for event in back))
