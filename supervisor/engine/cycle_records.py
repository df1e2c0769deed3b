"""What is recorded of each cycle for other programs: nodes and ranks, start and end, and the log?

All of it is in the leader's orders, which pass through here on their way to the nodes. Only jobs that request records
(--ft-cycle-info-dir) have any cost. edges/machine/logs/cycle_info.py writes the files; nothing waits for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from supervisor.config.job_logs import attempt_of, cycle_log_path, scheduler_job_id
from supervisor.core import orders
from supervisor.core.cluster.messages import Event as Report
from supervisor.core.cluster.roster import roster
from supervisor.core.ledger import Ledger
from supervisor.core.node_ranges import node_ranges, rank_ranges, sorted_names
from supervisor.core.orders import Order
from supervisor.engine.job_record import JobRecord, RecordedCycle
from supervisor.engine.loop import Engine
from supervisor.ports.edges import Clock, Peers
from supervisor.ports.reports import CycleInfo

STANDBY = frozenset({"ready", "spare"})

SeeOrder = Callable[[JobRecord, Order], None]
KeepRecord = Callable[[str, CycleInfo], None]  # gets the folder and the record to write


class RecordedPeers:
    """Passes everything to the real peers, after looking at orders. See ports.Peers."""

    def __init__(
        self,
        peers: Peers,
        jobs: Mapping[str, JobRecord],
        engine: Engine,
        clock: Clock,
        keep: KeepRecord,
        attribute: SeeOrder | None = None,
    ) -> None:
        """`attribute` gets the orders of jobs for whose cycles a service is asked."""
        self._peers = peers
        self._jobs = jobs
        self._engine = engine
        self._clock = clock
        self._keep = keep
        self._attribute = attribute
        self.leads = peers.leads

    def send(self, node: str, job_id: str, order: Order) -> None:
        job = self._jobs.get(job_id)
        if job is not None and job.spec.logs.cycle_info_dir:
            self._look_at(job, node, order)
        if job is not None and job.spec.attribution.endpoint and self._attribute is not None:
            self._attribute(job, order)
        self._peers.send(node, job_id, order)

    def report(self, job_id: str, report: Report) -> None:
        self._peers.report(job_id, report)

    def record(self, job_id: str, ledger: Ledger) -> None:
        self._peers.record(job_id, ledger)

    def _look_at(self, job: JobRecord, node: str, order: Order) -> None:
        self._write_again(job)
        match order:
            case orders.StartCycle():
                self._on_part(job, node, order)
            case orders.JoinAgain() | orders.WindDown() | orders.Conclude():
                self._on_end(job)
            case _:
                pass

    def _on_part(self, job: JobRecord, node: str, order: orders.StartCycle) -> None:
        job_id, assignment = job.spec.job_id, order.assignment
        cycle = job.recorded_cycle
        if cycle is None or cycle.number != assignment.cycle:
            self._on_end(job)
            cycle = RecordedCycle(assignment.cycle, self._clock.unix_ns(), assignment.group_world_size)
            job.recorded_cycle = cycle
        first = assignment.first_rank
        if len(cycle.parts) >= cycle.nodes_max:  # a node replaces another one
            cycle.parts = {name: ranks for name, ranks in cycle.parts.items() if ranks[:1] != (first,)}
        cycle.parts[node] = tuple(range(first, first + job.spec.local_world_size))
        if len(cycle.parts) >= cycle.nodes_max:  # the last of its orders, or one for a node that was replaced
            led = self._engine.coordinators.get(job_id)
            names = roster(led).nodes if led is not None else ()
            cycle.standby = tuple(each.name for each in names if each.state in STANDBY and each.name not in cycle.parts)
            self._write_next(job, cycle)

    def _on_end(self, job: JobRecord) -> None:
        cycle = job.recorded_cycle
        if cycle is not None and cycle.ended_at_ns is None:
            cycle.ended_at_ns = self._clock.unix_ns()
            self._write_next(job, cycle)

    def _write_again(self, job: JobRecord) -> None:
        """Rewrites the previous supervisor's last record, which may not have reached the disk."""
        cycle = job.recorded_cycle
        if cycle is not None and cycle.generation >= 0 and not job.has_written_cycle:
            self._write(job, cycle)

    def _write_next(self, job: JobRecord, cycle: RecordedCycle) -> None:
        cycle.generation += 1
        self._write(job, cycle)

    def _write(self, job: JobRecord, cycle: RecordedCycle) -> None:
        job.has_written_cycle = True
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
        )
        self._keep(logs.cycle_info_dir, record)
