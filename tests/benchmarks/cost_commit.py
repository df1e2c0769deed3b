"""Rows: what does `worker_client.commit` cost beside a rename by hand?"""

from __future__ import annotations

from collections.abc import Mapping

from tests.benchmarks.bench import EXIT_LIMIT_S, START_LIMIT_S, Bench
from tests.benchmarks.launch import Run, RunFailedError
from tests.benchmarks.rows import Group, Row, Unit
from tests.benchmarks.subjects import JobOptions, Subject

CONTENT_BYTES = 1024 * 1024


def measure_commit(bench: Bench) -> list[Row]:
    rows = [
        Row(
            "commit", Group.COST, "a file of 1 MiB with `commit`, p50", Unit.SECONDS,
            notes=[
                "One rank, in turn with the two rows below, in the folder of the run. `commit` flushes the "
                "file and its folder, keeps the token beside the path, and looks at the lease."
            ],
        ),
        Row("commit_flushed", Group.COST, "for comparison: the same by hand, with both flushes, p50", Unit.SECONDS),
        Row("commit_renamed", Group.COST, "for comparison: written and renamed, never flushed, p50", Unit.SECONDS),
    ]  # fmt: skip
    arguments = (str(int(bench.length(200, 40))), str(CONTENT_BYTES))

    def once(subject: Subject) -> Mapping[str, float]:
        with Run(subject, "committing", JobOptions(world_size=1, max_restarts=0, arguments=arguments)) as run:
            run.await_events("done", 1, limit_s=START_LIMIT_S)
            code = run.await_exit(limit_s=EXIT_LIMIT_S)
            if code:
                raise RunFailedError(f"{subject.label}: exit code {code}\n{run.output_tail()}")
            told = {event.name: event.fields for event in run.events}
        return {row.key: int(told[row.key]["p50_ns"]) / 1e9 for row in rows}

    bench.fill(rows, bench.counts(5, only=("holdfast",)), once)
    return rows
