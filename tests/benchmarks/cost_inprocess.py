"""Rows: what does the Wrapper cost while nothing fails: a ping, messages, processes, memory, CPU?"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from tests.benchmarks import processes
from tests.benchmarks.bench import START_LIMIT_S, Bench, Measured, settle
from tests.benchmarks.cost import MIB
from tests.benchmarks.launch import Run, RunFailedError
from tests.benchmarks.rows import Group, Row, Target, Unit
from tests.benchmarks.subjects import JobOptions, Subject

WORLD_SIZE = 4
HEARTBEAT_S = 1.0  # the default of progress_watchdog_interval
MARGIN_S = 5.0  # how much longer the ranks idle than they are watched
PINGS = 20_000


def measure_wrapper(bench: Bench) -> list[Row]:
    """Measures two jobs at a time with the same script, one wrapped and one bare."""
    ping = Row("ping", Group.COST, "ping(), tight loop, p50", Unit.MICROSECONDS, Target(at_most=0.5))
    sent = Row(
        "heartbeat_messages", Group.COST, "messages of a rank per automatic heartbeat", Unit.MESSAGES,
        Target(at_most=0),
        notes=[
            "What a wrapped rank sends on sockets and writes to pipes while its function runs, per second, the default "
            "interval of heartbeats. What the reference's monitor processes send each other comes on top."
        ],
    )  # fmt: skip
    count = Row(
        "wrapper_processes", Group.COST, "the Wrapper's addition per rank: processes", Unit.PROCESSES, Target(at_most=0)
    )
    memory = Row(
        "wrapper_memory", Group.COST, "the Wrapper's addition per rank: memory (PSS)", Unit.MIB, Target(at_most=2)
    )
    cpu = Row(
        "wrapper_cpu", Group.COST, "the Wrapper's addition per rank: CPU while the main thread wakes 20 times a second",
        Unit.CPU_S_PER_MINUTE, Target(at_most=0.05),
        notes=[
            "Of a job of 4 ranks, torch imported, beside a job with the same script without the Wrapper, at the same "
            "time: the rank's own, and a fourth of what all other processes of the job have more, the supervisor's too."
        ],
    )  # fmt: skip
    watched_s = bench.length(60.0, 5.0)

    def once(subject: Subject) -> Measured:
        idle_s = watched_s + MARGIN_S
        with Run(subject, "bare_idle", _options(idle_s + 2 * START_LIMIT_S)) as run:
            bare = _Job.idle(run, theirs=frozenset())
            with Run(subject, "wrapped_idle", _options(idle_s)) as other:
                wrapped = _Job.idle(other, theirs=frozenset(bare.pids))
                settle()
                before, from_s = (wrapped.cpu_s(), bare.cpu_s()), time.monotonic()
                time.sleep(watched_s)
                after, over_s = (wrapped.cpu_s(), bare.cpu_s()), time.monotonic() - from_s
                pss = [mine - theirs for mine, theirs in zip(wrapped.pss_bytes(), bare.pss_bytes(), strict=True)]
                idled = other.await_events("idled", WORLD_SIZE, limit_s=START_LIMIT_S)
                pinged = other.await_events("pinged", 1, limit_s=START_LIMIT_S)[0]
        spent_s = [
            (wrapped_after - wrapped_before) - (bare_after - bare_before)
            for wrapped_before, bare_before, wrapped_after, bare_after in zip(*before, *after, strict=True)
        ]
        return {
            ping.key: int(pinged.fields["p50_ns"]) / 1e3,
            sent.key: [int(event.fields["messages"]) / idle_s * HEARTBEAT_S for event in idled],
            count.key: (len(wrapped.pids) - len(bare.pids)) / WORLD_SIZE,
            memory.key: [added / MIB for added in pss],
            cpu.key: [added / over_s * 60 for added in spent_s],
        }

    rows = [ping, sent, count, memory, cpu]
    bench.fill(rows, bench.counts(1, only=("reference", "holdfast")), once)
    return rows


def _options(idle_s: float) -> JobOptions:
    return JobOptions(world_size=WORLD_SIZE, max_restarts=0, wrapped=True, arguments=(f"{idle_s:g}", str(PINGS)))


@dataclass(frozen=True, slots=True)
class _Job:
    """The processes of one job whose ranks idle."""

    ranks: list[int]  # by rank
    others: list[int]

    @classmethod
    def idle(cls, run: Run, *, theirs: frozenset[int]) -> _Job:
        """Waits until all ranks idle. `theirs`: processes of other jobs. Orphans of this job are our children."""
        events = run.await_events("idle", WORLD_SIZE, limit_s=START_LIMIT_S)
        ranks = [event.pid for event in sorted(events, key=lambda event: event.rank)]
        found = set(processes.descendants(os.getpid())) - theirs
        if not found.issuperset(ranks):
            raise RunFailedError(f"{run.subject.label}: a rank ended at once\n{run.output_tail()}")
        return cls(ranks, sorted(found.difference(ranks)))

    @property
    def pids(self) -> list[int]:
        return self.ranks + self.others

    def cpu_s(self) -> list[float]:
        """Returns the CPU time of each rank, with an equal part of what is spent beside the ranks."""
        beside_s = sum(map(processes.cpu_s, self.others)) / WORLD_SIZE
        return [processes.cpu_s(pid) + beside_s for pid in self.ranks]

    def pss_bytes(self) -> list[float]:
        beside_bytes = sum(map(processes.pss_bytes, self.others)) / WORLD_SIZE
        return [processes.pss_bytes(pid) + beside_bytes for pid in self.ranks]
