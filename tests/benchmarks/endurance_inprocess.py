"""Rows: do all ranks still agree after a thousand faults at random steps and moments of a restart?"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.benchmarks.bench import Bench, Measured
from tests.benchmarks.launch import Run, RunFailedError
from tests.benchmarks.rows import Group, Row, Target, Unit
from tests.benchmarks.subjects import WORKLOADS, JobOptions, Subject
from tests.e2e.fault_rounds import SCRIPT, Traces

RANKS = 8
ROUNDS = 1_000
NO_PROGRESS_S = 30.0  # no fault lasts as long: longer is a hang


def measure_rounds(bench: Bench) -> list[Row]:
    passed = Row(
        "inprocess_rounds",
        Group.ENDURANCE,
        f"in-process, faults at random, {RANKS} processes: rounds after which all ranks went on",
        Unit.ROUNDS,
        Target(at_least=ROUNDS),
        notes=[
            "A round is one iteration of one call, with a fault at a random step of it or of the restart or at a "
            f"random moment: SIGKILL, exit, exception, SIGSTOP, silence. A run passes if the job ends well and never "
            f"is without a line of output for {NO_PROGRESS_S:g} s.",
            "The reference is not measured: it does not replace a killed rank, and if that was rank 0, the others "
            "wait indefinitely.",
        ],
    )
    split = Row(
        "inprocess_split",
        Group.ENDURANCE,
        "in-process, the same: rounds with two world sizes, a rank twice or one beyond the world",
        Unit.ROUNDS,
        Target(at_most=0),
    )
    rounds = int(bench.length(ROUNDS, 40))

    def once(subject: Subject) -> Measured:
        seed = time.time_ns() % 1_000_000
        # A workload of the end-to-end tests, which run the same faults, but fewer.
        workload = os.path.relpath(SCRIPT.with_suffix(""), WORKLOADS)
        options = JobOptions(RANKS, max_restarts=2 * rounds, arguments=("--seed", str(seed), "--rounds", str(rounds)))
        with tempfile.TemporaryDirectory(prefix="bench-traces-") as folder:
            started_s = time.monotonic()
            with Run(subject, workload, options, variables={"TRACES": folder}) as run:
                code = _await_end(run, Path(folder))
                took_s = time.monotonic() - started_s
                if code:
                    raise RunFailedError(f"{subject.label}: exit code {code} with seed {seed}\n{run.output_tail()}")
            traces = Traces.read(Path(folder))
        problems = traces.problems()
        kinds = Counter(line["kind"] for line in traces.all("fault"))
        kinds["exception"] = kinds.pop("raise", 0)
        told = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        passed.notes.append(
            f"Seed {seed}: {took_s:.0f} s; planned were {told}; a fault within a restart has an exception before it. "
            f"{traces.last_world_size()} ranks at the end, since a rank that leaves does not come back."
        )
        split.notes += problems[:3]
        return {passed.key: traces.all("returned")[0]["iteration"], split.key: len(problems)}

    bench.fill([passed, split], bench.counts(1, only=("holdfast",)), once)
    return [passed, split]


def _await_end(run: Run, traces: Path) -> int:
    """Returns the job's exit code. Raises RunFailedError once its ranks stop writing."""
    size_bytes = -1
    while True:
        try:
            return run.await_exit(limit_s=NO_PROGRESS_S)
        except RunFailedError:
            now_bytes = sum(path.stat().st_size for path in traces.glob("*.jsonl"))
            if now_bytes == size_bytes:
                raise
            size_bytes = now_bytes
