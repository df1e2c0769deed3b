"""Row: of gloo jobs in which a rank exits, how many does the restart bring to their end?"""

from __future__ import annotations

from collections.abc import Mapping

from tests.benchmarks.bench import START_LIMIT_S, Bench, settle
from tests.benchmarks.launch import Run, RunFailedError, say
from tests.benchmarks.rows import Group, Row, Target, Unit
from tests.benchmarks.subjects import JobOptions, Subject

RECOVERY_LIMIT_S = 20.0


def measure_reliability(bench: Bench) -> list[Row]:
    row = Row(
        "reliability",
        Group.SPEED,
        "gloo job of 2 ranks, rank 1 exits with 7, one restart allowed: jobs that end well",
        Unit.RECOVERED,
        Target(at_least=1.0),
        notes=[
            f"A job that is not back within {RECOVERY_LIMIT_S:g} s counts as lost. torchrun runs as documented for one "
            "node (--standalone); tuned, it makes a store of its own for each attempt."
        ],
    )

    def once(subject: Subject) -> Mapping[str, float]:
        with Run(subject, "restart_torch", JobOptions(world_size=2, max_restarts=1, arguments=("--exit",))) as run:
            run.await_events("barrier", 2, cycle=0, limit_s=START_LIMIT_S)
            settle()
            run.go()
            try:
                run.await_recovery("reduced", limit_s=RECOVERY_LIMIT_S)
                return {row.key: float(run.await_exit(limit_s=RECOVERY_LIMIT_S) == 0)}
            except RunFailedError as error:
                say(f"    lost: {error}")
                return {row.key: 0.0}

    few = bench.runs(2, 1)
    counts = {"torchrun": bench.runs(6, 2), "torchrun_tuned": few, "reference": few, "holdfast": bench.runs(100, 5)}
    bench.fill([row], counts, once)
    return [row]
