"""Rows: what supervision costs: processes and memory, CPU of monitoring, a call in the worker, an import."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from tests.benchmarks import processes
from tests.benchmarks.bench import EXIT_LIMIT_S, START_LIMIT_S, Bench, settle
from tests.benchmarks.launch import Event, Run, RunFailedError
from tests.benchmarks.rows import Group, Row, Target, Unit
from tests.benchmarks.subjects import Family, JobOptions, Subject

MIB = 1024 * 1024
BEATS_PER_S = 100
SLOWEST_BEATS = 0.9  # share of the heartbeats due; below it, a rank was held up


def beside_workers(run: Run, workers: list[Event]) -> list[int]:
    """Returns every process of the run that is neither a worker nor started by one."""
    theirs = {event.pid for event in workers}
    for pid in list(theirs):
        theirs.update(processes.descendants(pid))
    return [pid for pid in (run.pid, *processes.descendants(run.pid)) if pid not in theirs]


def measure_footprint(bench: Bench) -> list[Row]:
    title = "beside 8 idle workers without torch"
    count = Row("processes", Group.COST, f"processes {title}", Unit.PROCESSES, Target(at_most=3))
    memory = Row("memory", Group.COST, f"memory (PSS) of the processes {title}", Unit.MIB, Target(at_most=90))
    whole = Row(
        "memory_whole",
        Group.COST,
        "memory (PSS) of those and the 8 workers together",
        Unit.MIB,
        notes=[
            "PSS divides a shared page among those who map it; this row shows that nothing was moved to the workers."
        ],
    )

    def once(subject: Subject) -> Mapping[str, float]:
        with Run(subject, "sleeping", JobOptions(world_size=8)) as run:
            workers = run.await_events("first_line", 8, limit_s=START_LIMIT_S)
            settle()
            beside = beside_workers(run, workers)
            beside_bytes = sum(map(processes.pss_bytes, beside))
            worker_bytes = sum(processes.pss_bytes(event.pid) for event in workers)
            return {
                count.key: len(beside),
                memory.key: beside_bytes / MIB,
                whole.key: (beside_bytes + worker_bytes) / MIB,
            }

    bench.fill([count, memory, whole], bench.counts(3, only=("torchrun", "reference", "holdfast")), once)
    return [count, memory, whole]


def measure_monitoring(bench: Bench) -> list[Row]:
    row = Row(
        "monitoring_cpu",
        Group.COST,
        f"CPU beside the workers while 8 ranks send {BEATS_PER_S} heartbeats/s each",
        Unit.CPU_S_PER_MINUTE,
        Target(at_most=0.3),
        notes=["torchrun has no heartbeats: its ranks renew a file timer as often."],
    )
    watched_s = bench.length(10.0, 4.0)

    def once(subject: Subject) -> Mapping[str, float]:
        arguments = (str(BEATS_PER_S), str(watched_s + 30))
        timers = subject.family is Family.TORCHRUN
        options = JobOptions(world_size=8, heartbeat_timeout_s=60, file_timers=timers, arguments=arguments)
        with Run(subject, "beating", options) as run:
            workers = run.await_events("ready", 8, cycle=0, limit_s=START_LIMIT_S)
            settle()
            beside = beside_workers(run, workers)
            before_s, from_s = sum(map(processes.cpu_s, beside)), time.monotonic()
            time.sleep(watched_s)
            spent_s, over_s = sum(map(processes.cpu_s, beside)) - before_s, time.monotonic() - from_s
            if set(beside) - set(beside_workers(run, workers)) or any(event.cycle for event in run.events):
                raise RunFailedError(f"{subject.label}: a process went away while it was watched\n{run.output_tail()}")
            return {row.key: spent_s / over_s * 60}

    bench.fill([row], bench.counts(2, 1, only=("torchrun", "reference", "holdfast")), once)
    return [row]


def measure_calls(bench: Bench) -> list[Row]:
    paced = Row(
        "heartbeat_paced", Group.COST, "send_heartbeat, 100/s, p50", Unit.MICROSECONDS, Target(at_most=5),
        notes=[
            "torchrun has neither heartbeats nor sections: its file timer is timed, renewed, or taken and freed.",
            "Between two readings of perf_counter_ns, after a sleep until the next 10 ms and one reading that is "
            "thrown away. Nothing is subtracted; the empty function below is timed likewise, in turn with the others. "
            "After the sleep nearly all that a call costs is memory that the caches have lost.",
        ],
    )  # fmt: skip
    slowest = Row("heartbeat_p99", Group.COST, "send_heartbeat, 100/s, p99", Unit.MICROSECONDS, Target(at_most=20))
    tight = Row("heartbeat_tight", Group.COST, "send_heartbeat, tight loop, p50", Unit.MICROSECONDS, Target(at_most=1))
    section = Row(
        "section_paced", Group.COST, "start and end of a monitored section, 100/s, p50", Unit.MICROSECONDS,
        Target(at_most=10),
    )  # fmt: skip
    nothing = Row(
        "nothing_paced", Group.COST, "for comparison: an empty function, 100/s, p50", Unit.MICROSECONDS,
        notes=["What waking up, and the second reading, cost on this machine; the rows above contain it."],
    )  # fmt: skip
    calls = (str(int(bench.length(500, 100))), str(int(bench.length(20_000, 2_000))))

    def once(subject: Subject) -> Mapping[str, float]:
        timers = subject.family is Family.TORCHRUN
        options = JobOptions(
            world_size=2,
            max_restarts=0,
            heartbeat_timeout_s=60,
            watch_section="step",
            file_timers=timers,
            arguments=calls,
        )
        with Run(subject, "call_cost", options) as run:
            run.await_events("done", 2, limit_s=START_LIMIT_S)
            code = run.await_exit(limit_s=EXIT_LIMIT_S)
            if code:
                raise RunFailedError(f"{subject.label}: exit code {code}\n{run.output_tail()}")
            told = {event.name: event.fields for event in run.events}
        wanted = {
            paced.key: ("heartbeat_paced", "p50_ns"),
            slowest.key: ("heartbeat_paced", "p99_ns"),
            tight.key: ("heartbeat_tight", "p50_ns"),
            section.key: ("section_paced", "p50_ns"),
            nothing.key: ("nothing_paced", "p50_ns"),
        }
        for key, (name, _) in wanted.items():
            if "failed" in told[name]:
                tight.notes.append(f"{subject.label}, {key}: fails with {told[name]['failed']}.")
        return {key: int(told[name][field]) / 1e3 for key, (name, field) in wanted.items() if field in told[name]}

    rows = [paced, slowest, tight, section, nothing]
    bench.fill(rows, bench.counts(3, only=("torchrun", "reference", "holdfast")), once)
    for row in rows:
        row.notes = list(dict.fromkeys(row.notes))
    return rows


_IMPORT = """
import sys, time
import torch
start = time.perf_counter_ns()
from {module} import RankMonitorClient
print(time.perf_counter_ns() - start)
"""
_BARE_IMPORT = """
import sys
import worker_client
worker_client.RankMonitorClient
print(*sorted({"torch", "grpc", "asyncio", "numpy"} & sys.modules.keys()))
"""


def measure_import(bench: Bench) -> list[Row]:
    row = Row("import", Group.COST, "import of the worker's client, beyond torch", Unit.SECONDS, Target(at_most=0.04))

    def once(subject: Subject) -> Mapping[str, float]:
        python = subject.program.parent / "python"
        return {row.key: int(_ask(python, _IMPORT.format(module=subject.client))) / 1e9}

    bench.fill([row], bench.counts(5, only=("reference", "holdfast")), once)
    for subject in bench.subjects:
        if subject.family is Family.HOLDFAST:
            heavy = _ask(subject.program.parent / "python", _BARE_IMPORT)
            row.notes.append(
                f"In a bare interpreter worker_client loads {heavy or 'no torch, grpc, asyncio or numpy'}."
            )
    return [row]


def _ask(python: Path, program: str) -> str:
    done = subprocess.run([str(python), "-c", program], check=False, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise RunFailedError(f"cannot import: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout.strip()
