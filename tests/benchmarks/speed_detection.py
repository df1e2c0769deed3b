"""Rows: how soon does a supervisor know that a worker exited or hangs, and what does it do then?"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping

from tests.benchmarks.bench import EXIT_LIMIT_S, RECOVERY_LIMIT_S, START_LIMIT_S, Bench, seconds, settle
from tests.benchmarks.launch import Event, Run, RunFailedError
from tests.benchmarks.rows import Group, Row, Statistic, Target, Unit
from tests.benchmarks.subjects import Family, JobOptions, Subject

HEARTBEAT_TIMEOUT_S = 1.0


def measure_exit(bench: Bench) -> list[Row]:
    row = Row(
        "exit_known",
        Group.SPEED,
        "worker exit: rank 1 of 4 exits → SIGTERM reaches the first of the others",
        Unit.SECONDS,
        Target(at_most=0.02),
        Statistic.P99,
    )
    known = Row(
        "exit_event",
        Group.SPEED,
        "worker exit: rank 1 of 4 exits → the supervisor records it",
        Unit.SECONDS,
        Target(at_most=0.02),
        Statistic.P99,
        notes=["Only holdfast records when it learned of an exit; the row above shows it from outside, for all."],
    )

    def once(subject: Subject) -> Mapping[str, float]:
        with Run(subject, "leaving", JobOptions(max_restarts=0)) as run:
            run.await_events("ready", 4, limit_s=START_LIMIT_S)
            settle()
            run.go()
            fault = run.await_events("fault", 1, limit_s=START_LIMIT_S)[0]
            told = run.await_events("told", 3, limit_s=RECOVERY_LIMIT_S)
            measured = {row.key: seconds(fault.at_ns, min(event.at_ns for event in told))}
            if subject.family is Family.HOLDFAST:
                run.await_exit(limit_s=EXIT_LIMIT_S)
                measured[known.key] = seconds(fault.at_ns, recorded_ns(run, "worker_failed"))
            return measured

    counts = bench.counts(4, only=("torchrun", "torchrun_tuned", "reference"))
    counts["holdfast"] = bench.runs(20)
    bench.fill([row, known], counts, once)
    return [row, known]


def recorded_ns(run: Run, kind: str) -> int:
    """Returns when the supervisor recorded that event of rank 1 in the first cycle."""
    for entry in run.told_by_supervisor():
        if entry.kind == kind and entry.rank == 1 and entry.cycle == 0:
            return entry.at_ns
    raise RunFailedError(f"{run.subject.label}: it recorded no {kind} of rank 1")


def measure_hang(bench: Bench) -> list[Row]:
    killed = Row(
        "hang_killed",
        Group.SPEED,
        "hang: death of the silent rank, beyond its last heartbeat plus the timeout of 1 s",
        Unit.SECONDS,
        Target(at_most=0.15, never_below=0.0),
        Statistic.WORST,
        notes=["torchrun watches no heartbeats. holdfast takes the stacks of all ranks before the kill."],
    )
    verdict = Row(
        "hang_verdict",
        Group.SPEED,
        "hang: the supervisor records its verdict, beyond that moment",
        Unit.SECONDS,
        Target(at_most=0.02, never_below=0.0),
        Statistic.P99,
        notes=["Only holdfast records when it decided."],
    )
    recovered = Row(
        "hang_restart",
        Group.SPEED,
        "hang: first line of the last new worker, beyond the timeout",
        Unit.SECONDS,
        Target(at_most=0.4),
    )

    def once(subject: Subject) -> Mapping[str, float]:
        with Run(subject, "hanging", JobOptions(heartbeat_timeout_s=HEARTBEAT_TIMEOUT_S)) as run:
            silent_from, died_ns = hang(run)
            due_ns = silent_from.at_ns + round(HEARTBEAT_TIMEOUT_S * 1e9)
            back = run.await_recovery("first_line", limit_s=RECOVERY_LIMIT_S)
            code = run.await_exit(limit_s=EXIT_LIMIT_S)
            if code:
                raise RunFailedError(f"{subject.label}: exit code {code} after a hang\n{run.output_tail()}")
            measured = {
                killed.key: seconds(due_ns, died_ns),
                recovered.key: seconds(due_ns, max(event.at_ns for event in back)),
            }
            if subject.family is Family.HOLDFAST:
                measured[verdict.key] = seconds(due_ns, recorded_ns(run, "hang_detected"))
            return measured

    counts = {subject.key: bench.runs(4) for subject in bench.subjects if subject.family is not Family.TORCHRUN}
    counts["holdfast"] = bench.runs(20)
    bench.fill([verdict, killed, recovered], counts, once)
    return [verdict, killed, recovered]


def hang(run: Run) -> tuple[Event, int]:
    """Makes rank 1 fall silent; returns its last heartbeat and the time at which it was seen dead."""
    ready = run.await_events("ready", run.options.world_size, cycle=0, limit_s=START_LIMIT_S)
    pidfd = os.pidfd_open(next(event.pid for event in ready if event.rank == 1))
    try:
        settle()
        run.go()
        last = run.await_events("last_heartbeat", 1, limit_s=START_LIMIT_S)[0]
        if not select.select([pidfd], [], [], RECOVERY_LIMIT_S)[0]:
            raise RunFailedError(f"{run.subject.label}: the silent rank lives after {RECOVERY_LIMIT_S:g} s")
        return last, time.monotonic_ns()
    finally:
        os.close(pidfd)
