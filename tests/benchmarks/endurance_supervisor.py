"""Rows: a node's supervisor is killed at random moments: is it back in time, and is anything lost?"""

from __future__ import annotations

import random
import statistics
import time

from tests.benchmarks.bench import Bench, Measured
from tests.benchmarks.figures import percentile
from tests.benchmarks.rows import Group, Row, Statistic, Target, Unit
from tests.benchmarks.subjects import Subject
from tests.soak import supervisor_kills

KILLS = 300
JOB_CYCLES = 6
LIMIT_S = 3_600.0


def measure_kills(bench: Bench) -> list[Row]:
    back = Row(
        "supervisor_killed_back",
        Group.ENDURANCE,
        "the node's supervisor is killed at random moments → the next one has taken its job back, and answers",
        Unit.SECONDS,
        Target(at_most=2.0),
        Statistic.P99,
        notes=[
            "From the start of the next process on; systemd starts it 0.1 s after the end of the last one "
            "(`RestartSec=`). Three of ten starts are not awaited, so that the next kill may hit them: those give no "
            "sample.",
        ],
    )
    lost = Row(
        "supervisor_killed_lost",
        Group.ENDURANCE,
        "the same: workers, exit codes, hangs, events or lines of output that are lost or come twice",
        Unit.MESSAGES,
        Target(at_most=0),
        notes=[
            "Jobs of two ranks, one after the other. A cycle ends by an exit code of its own or by a hang; in three of "
            "ten jobs a wrapped call goes on after exceptions. The ranks count aloud all the while. The ranks of the "
            "reference and of torchrun go on without a supervisor if it is killed, and nothing takes them back.",
        ],
    )
    kills_max = int(bench.length(KILLS, 20))

    def once(subject: Subject) -> Measured:
        del subject
        seed = time.time_ns() % 1_000_000
        done = supervisor_kills.run(random.Random(seed), seconds=LIMIT_S, kills_max=kills_max, cycles=JOB_CYCLES)
        median, worst = statistics.median(done.ready_s), max(done.ready_s)
        back.notes.append(
            f"Seed {seed}: {done.kills} kills, {done.while_starting} of them of a supervisor that was starting, under "
            f"{done.jobs} jobs; median {median:.2f} s, p90 {percentile(done.ready_s, 90):.2f} s, slowest {worst:.2f} s."
        )
        lost.notes += [each.splitlines()[0][:200] for each in done.wrong[:3]]
        return {back.key: done.ready_s, lost.key: float(len(done.wrong))}

    bench.fill([back, lost], bench.counts(1, only=("holdfast",)), once)
    return [back, lost]
