"""Rows: eight ranks print as fast as they can: what does it cost, and do heartbeats and disk bear it?"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from supervisor.engine.output_plan import DEFAULT_LOG_BYTES_MAX
from tests.benchmarks import processes
from tests.benchmarks.bench import START_LIMIT_S, Bench
from tests.benchmarks.cost import MIB, beside_workers
from tests.benchmarks.launch import Run, RunFailedError
from tests.benchmarks.rows import Group, Row, Statistic, Target, Unit
from tests.benchmarks.subjects import Family, JobOptions, Subject

RANKS = 8
RATE_MB_PER_S = 100
HEARTBEAT_TIMEOUT_S = 2.0
STATE_MIB = 8  # the journal, and what the bench itself keeps
KEPT_MIB_MAX = RANKS * 2 * DEFAULT_LOG_BYTES_MAX / MIB + STATE_MIB  # the supervisor keeps one older part of each stream


def measure_output(bench: Bench) -> list[Row]:
    cpu = Row(
        "flood_cpu",
        Group.ENDURANCE,
        f"log flood, {RANKS} ranks that print {RATE_MB_PER_S} MB/s each if they can: CPU beside the workers",
        Unit.CORES,
        Target(at_most=1.0),
        notes=[
            "holdfast with its default logs; the peers with --tee 3, since by default they keep none. A run passes if "
            f"no rank is taken for hung (heartbeat timeout {HEARTBEAT_TIMEOUT_S:g} s; torchrun watches none).",
        ],
    )
    rate = Row("flood_rate", Group.ENDURANCE, "the same: what the ranks got rid of together", Unit.MB_PER_S)
    beat = Row(
        "flood_beat", Group.ENDURANCE, "the same: slowest send_heartbeat of any rank", Unit.SECONDS,
        Target(at_most=HEARTBEAT_TIMEOUT_S), Statistic.WORST,
    )  # fmt: skip
    kept = Row(
        "flood_kept", Group.ENDURANCE, "the same: kept on disk at the end", Unit.MIB, Target(at_most=KEPT_MIB_MAX)
    )
    printed_s = bench.length(4.0, 2.0)

    def once(subject: Subject) -> Mapping[str, float]:
        watched = subject.family is not Family.TORCHRUN
        with tempfile.TemporaryDirectory(prefix="bench-log-") as logs, Path(os.devnull).open("wb") as console:
            options = JobOptions(
                world_size=RANKS,
                max_restarts=1,
                heartbeat_timeout_s=HEARTBEAT_TIMEOUT_S if watched else None,
                tee_into=None if subject.family is Family.HOLDFAST else Path(logs),
                arguments=(str(RATE_MB_PER_S), str(printed_s), "beat" if watched else "print"),
            )
            with Run(subject, "flooding", options, console.fileno()) as run:
                workers = run.await_events("ready", RANKS, cycle=0, limit_s=START_LIMIT_S)
                beside = beside_workers(run, workers)
                before_s, from_s = sum(map(processes.cpu_s, beside)), time.monotonic()
                done = run.await_events("done", RANKS, limit_s=START_LIMIT_S)
                spent_s, over_s = sum(map(processes.cpu_s, beside)) - before_s, time.monotonic() - from_s
                if any(event.cycle for event in run.events):
                    raise RunFailedError(f"{subject.label}: a rank was taken for hung while it printed")
                disk_bytes = _size_bytes(Path(logs)) + _size_bytes(run.folder)
        measured = {
            cpu.key: spent_s / over_s,
            rate.key: sum(int(event.fields["written"]) / float(event.fields["took_s"]) for event in done) / 1e6,
            kept.key: disk_bytes / MIB,
        }
        if watched:
            measured[beat.key] = max(float(event.fields["slowest_beat_s"]) for event in done)
        return measured

    if shutil.disk_usage(tempfile.gettempdir()).free < RANKS * RATE_MB_PER_S * 1e6 * printed_s * 1.5:
        cpu.notes.append("Not measured: too little room for the peers' log files.")
        return [cpu]
    bench.fill([cpu, rate, beat, kept], bench.counts(2, 1, only=("torchrun", "reference", "holdfast")), once)
    return [cpu, rate, beat, kept]


def _size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
