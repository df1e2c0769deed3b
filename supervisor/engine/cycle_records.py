"""What is recorded of each cycle for other programs: nodes and ranks, start and end, and the log?

The leader's coordinator announces it. Only jobs that request records (--ft-cycle-info-dir) have any cost.
edges/machine/logs/cycle_info.py writes the files; nothing waits for them.
"""

from __future__ import annotations

from collections.abc import Callable

from supervisor.config.job_logs import attempt_of, cycle_log_path, scheduler_job_id
from supervisor.core.announcements import (
    Announcement,
    CycleBegan,
    CycleEnded,
    JobEnded,
    LeadChanged,
    NodeLost,
    PartsChanged,
)
from supervisor.core.node_ranges import node_ranges, rank_ranges, sorted_names
from supervisor.engine.job_record import JobRecord, RecordedCycle
from supervisor.ports.edges import Clock
from supervisor.ports.reports import CycleInfo

KeepRecord = Callable[[str, CycleInfo], None]  # gets the folder and the record to write


class CycleRecords:
    """The records of all jobs that this node leads."""

    def __init__(self, clock: Clock, keep: KeepRecord) -> None:
        self._clock = clock
        self._keep = keep

    def announced(self, job: JobRecord, announcement: Announcement) -> None:
        """Records what the announcement says. Never blocks."""
        if not job.spec.logs.cycle_info_dir:
            return
        match announcement:
            case CycleBegan(number):
                job.recorded_cycle = RecordedCycle(number, self._clock.unix_ns(), len(announcement.nodes))
                self._place(job, job.recorded_cycle, announcement)
            case PartsChanged(number):
                cycle = job.recorded_cycle
                if cycle is not None and cycle.number == number:
                    self._place(job, cycle, announcement)
            case CycleEnded(number):
                cycle = job.recorded_cycle
                if cycle is not None and cycle.number == number and cycle.ended_at_ns is None:
                    cycle.ended_at_ns = self._clock.unix_ns()
                    self._write_next(job, cycle)
            case LeadChanged(leads, number):
                cycle = job.recorded_cycle
                if cycle is not None and leads and cycle.number == number:
                    self._write(job, cycle)  # what the previous supervisor wrote last may not have reached the disk
                else:
                    job.recorded_cycle = None  # it is another leader's
            case NodeLost() | JobEnded():
                pass

    def _place(self, job: JobRecord, cycle: RecordedCycle, announced: CycleBegan | PartsChanged) -> None:
        size = job.spec.local_world_size
        cycle.parts = {node: tuple(range(part * size, (part + 1) * size)) for part, node in enumerate(announced.nodes)}
        cycle.standby = announced.standby
        self._write_next(job, cycle)

    def _write_next(self, job: JobRecord, cycle: RecordedCycle) -> None:
        cycle.generation += 1
        self._write(job, cycle)

    def _write(self, job: JobRecord, cycle: RecordedCycle) -> None:
        logs, names = job.spec.logs, sorted_names(cycle.parts)
        record = CycleInfo(
            job_id=scheduler_job_id(job.environment, job.spec.job_id),
            attempt=attempt_of(job.environment),
            cycle=cycle.number,
            started_at_ns=cycle.started_at_ns,
            ended_at_ns=cycle.ended_at_ns,
            log_path=cycle_log_path(logs.cycle_prefix, cycle.number) if logs.cycle_prefix else "",
            active_nodes=node_ranges(names),
            standby_nodes=node_ranges(cycle.standby),
            active_ranks=rank_ranges([cycle.parts[name] for name in names]),
            generation=cycle.generation,
            stem=job.cycle_info_stem,
        )
        self._keep(logs.cycle_info_dir, record)
