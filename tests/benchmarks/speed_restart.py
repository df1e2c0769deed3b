"""Rows: cold start, restart after a kill, with and without torch, with workers that do not want to stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.benchmarks.bench import EXIT_LIMIT_S, RECOVERY_LIMIT_S, START_LIMIT_S, Bench, seconds, settle
from tests.benchmarks.launch import Run, RunFailedError
from tests.benchmarks.pictures import waterfall_picture
from tests.benchmarks.rows import OURS, Group, Row, Target, Unit
from tests.benchmarks.subjects import JobOptions, Subject
from tests.benchmarks.waterfall import Phase, middle, recovery


def measure_restart(bench: Bench) -> list[Row]:
    start = Row(
        "cold_start",
        Group.SPEED,
        "cold start: the command → first line of the last of 4 workers, no torch in the script",
        Unit.SECONDS,
        Target(at_most=0.5),
    )
    restart = Row(
        "restart",
        Group.SPEED,
        "restart: rank 1 of 4 kills itself → first line of the last new worker, no torch in the script",
        Unit.SECONDS,
        Target(at_most=0.06, share_of={"torchrun_tuned": 1 / 3, "reference": 1 / 30}),
    )
    recoveries: list[list[Phase]] = []

    def once(subject: Subject) -> Mapping[str, float]:
        with Run(subject, "restart", JobOptions()) as run:
            first = run.await_events("first_line", 4, cycle=0, limit_s=START_LIMIT_S)
            took_s = restart_s(run, ready="ready", recovered="first_line")
            if subject.key == OURS:
                recoveries.append(recovery(run, "first_line"))
            return {start.key: seconds(run.launched_ns, max(event.at_ns for event in first)), restart.key: took_s}

    peers = bench.counts(5, only=("torchrun", "torchrun_tuned", "reference", "reference_tuned"))
    bench.fill([start, restart], {**peers, "holdfast": bench.runs(15)}, once)
    draw(restart, recoveries)
    return [start, restart]


def measure_restart_torch(bench: Bench) -> list[Row]:
    start = Row(
        "cold_start_torch",
        Group.SPEED,
        "cold start with torch: the command → first gloo barrier of 4 workers",
        Unit.SECONDS,
        Target(at_most=0.8, share_of={"torchrun_tuned": 1 / 3}),
    )
    restart = Row(
        "restart_torch",
        Group.SPEED,
        "restart with torch: rank 1 of 4 kills itself → the new workers' gloo barrier",
        Unit.SECONDS,
        Target(at_most=0.06, share_of={"torchrun_tuned": 1 / 20, "reference": 1 / 30}),
        notes=[
            "Where the first new cycle fails too, its successors count: the time ends when all ranks are back.",
            "torchrun without its tuning seldom comes back from this (see the jobs that end well): no figure.",
        ],
    )
    recoveries: list[list[Phase]] = []

    def once(subject: Subject) -> Mapping[str, float]:
        with Run(subject, "restart_torch", JobOptions()) as run:
            first = run.await_events("barrier", 4, cycle=0, limit_s=START_LIMIT_S)
            start.add(subject.key, seconds(run.launched_ns, max(event.at_ns for event in first)))
            took_s = restart_s(run, ready="barrier", recovered="barrier")
            if subject.key == OURS:
                recoveries.append(recovery(run, "barrier"))
            return {restart.key: took_s}

    counts = bench.counts(3, only=("torchrun_tuned", "reference"))
    bench.fill([restart], {**counts, "holdfast": bench.runs(9)}, once)
    draw(restart, recoveries)
    return [start, restart]


def draw(row: Row, recoveries: Sequence[Sequence[Phase]]) -> None:
    """Draws the run of ours that took the median time; nothing if every run failed."""
    if phases := middle(recoveries):
        row.picture = waterfall_picture(f"{OURS}, where the time of a {row.title.partition(':')[0]} goes", phases)
        row.notes.append(
            "the picture is our run of median time. Each bar ends with an event: of the supervisor's record up to "
            '"decide", of the last rank after it.'
        )


def measure_stubborn(bench: Bench) -> list[Row]:
    row = Row(
        "restart_stubborn",
        Group.SPEED,
        "restart without torch, the workers ignore SIGTERM, stop timeout 1 s",
        Unit.SECONDS,
        Target(at_most=1.1),
        notes=["torchrun is told --shutdown-timeout 1: it does not hold for restarts."],
    )

    def once(subject: Subject) -> Mapping[str, float]:
        options = JobOptions(stop_timeout_s=1.0, arguments=("--ignore-sigterm",))
        with Run(subject, "restart", options) as run:
            return {row.key: restart_s(run, ready="ready", recovered="first_line")}

    bench.fill([row], {**bench.counts(3, only=("reference", "holdfast")), "torchrun": 1}, once)
    return [row]


def restart_s(run: Run, *, ready: str, recovered: str, limit_s: float = RECOVERY_LIMIT_S) -> float:
    """Fails rank 1 once all are ready; returns the time until the last `recovered`. The job must end well."""
    run.await_events(ready, run.options.world_size, cycle=0, limit_s=START_LIMIT_S)
    settle()
    run.go()
    fault = run.await_events("fault", 1, limit_s=START_LIMIT_S)[0]
    back = run.await_recovery(recovered, limit_s=limit_s)
    code = run.await_exit(limit_s=max(limit_s, EXIT_LIMIT_S))
    if code:
        raise RunFailedError(f"{run.subject.label}: exit code {code} after the restart\n{run.output_tail()}")
    return seconds(fault.at_ns, max(event.at_ns for event in back))
