"""What is recorded of each cycle of a job for other programs: which nodes and ranks, from when until when, which log?

The leader's orders say it all: they pass by here on their way to the nodes. Only jobs that ask for it
(--ft-cycle-info-dir) cost anything. edges/machine/logs/cycle_info.py writes the files, and nothing waits for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from supervisor.config.job_logs import attempt_of, cycle_log_path, scheduler_job_id
from supervisor.core import orders
from supervisor.core.cluster.messages import Event as Report
from supervisor.core.cluster.roster import roster
from supervisor.core.ledger import Ledger
from supervisor.core.node_ranges import node_ranges, rank_ranges, sorted_names
from supervisor.core.orders import Order
from supervisor.engine.job_book import JobRecord
from supervisor.engine.loop import Engine
from supervisor.ports import Clock, CycleInfo, Peers

STANDBY = frozenset({"ready", "spare"})

KeepRecord = Callable[[str, CycleInfo], None]  # the folder, and what is to be written there


class _Cycle(msgspec.Struct):
    """The newest one of a job."""

    number: int
    started_at_ns: int
    nodes_max: int
    parts: dict[str, tuple[int, ...]]  # node -> its ranks
    standby: tuple[str, ...] = ()
    generation: int = -1  # of what was written
    has_ended: bool = False


class RecordedPeers:
    """See ports.Peers: everything goes on to the real ones, orders after they were looked at."""

    def __init__(
        self, peers: Peers, jobs: Mapping[str, JobRecord], engine: Engine, clock: Clock, keep: KeepRecord
    ) -> None:
        self._peers = peers
        self._jobs = jobs
        self._engine = engine
        self._clock = clock
        self._keep = keep
        self._cycles: dict[str, _Cycle] = {}
        self.leads = peers.leads

    def send(self, node: str, job_id: str, order: Order) -> None:
        job = self._jobs.get(job_id)
        if job is not None and job.spec.logs.cycle_info_dir:
            self._look_at(job, node, order)
        self._peers.send(node, job_id, order)

    def report(self, job_id: str, report: Report) -> None:
        self._peers.report(job_id, report)

    def record(self, job_id: str, ledger: Ledger) -> None:
        self._peers.record(job_id, ledger)

    def _look_at(self, job: JobRecord, node: str, order: Order) -> None:
        match order:
            case orders.StartCycle():
                self._on_part(job, node, order)
            case orders.JoinAgain() | orders.WindDown() | orders.Conclude():
                self._on_end(job)
                if isinstance(order, orders.Conclude):
                    self._cycles.pop(job.spec.job_id, None)
            case _:
                pass

    def _on_part(self, job: JobRecord, node: str, order: orders.StartCycle) -> None:
        job_id, assignment = job.spec.job_id, order.assignment
        cycle = self._cycles.get(job_id)
        if cycle is None or cycle.number != assignment.cycle:
            self._on_end(job)
            cycle = _Cycle(assignment.cycle, self._clock.unix_ns(), assignment.group_world_size, {})
            self._cycles[job_id] = cycle
        first = assignment.first_rank
        cycle.parts = {name: ranks for name, ranks in cycle.parts.items() if ranks[:1] != (first,)}
        cycle.parts[node] = tuple(range(first, first + job.spec.local_world_size))
        if len(cycle.parts) >= cycle.nodes_max:  # The last of its orders, or one for a node that was replaced.
            led = self._engine.coordinators.get(job_id)
            names = roster(led).nodes if led is not None else ()
            cycle.standby = tuple(each.name for each in names if each.state in STANDBY and each.name not in cycle.parts)
            self._write(job, cycle, None)

    def _on_end(self, job: JobRecord) -> None:
        cycle = self._cycles.get(job.spec.job_id)
        if cycle is not None and not cycle.has_ended:
            cycle.has_ended = True
            self._write(job, cycle, self._clock.unix_ns())

    def _write(self, job: JobRecord, cycle: _Cycle, ended_at_ns: int | None) -> None:
        cycle.generation += 1
        logs, names = job.spec.logs, sorted_names(cycle.parts)
        record = CycleInfo(
            job_id=scheduler_job_id(job.environment, job.spec.job_id),
            attempt=attempt_of(job.environment),
            cycle=cycle.number,
            started_at_ns=cycle.started_at_ns,
            ended_at_ns=ended_at_ns,
            log_path=cycle_log_path(logs.cycle_prefix, cycle.number) if logs.cycle_prefix else "",
            active_nodes=node_ranges(names),
            standby_nodes=node_ranges(cycle.standby),
            active_ranks=rank_ranges([cycle.parts[name] for name in names]),
            generation=cycle.generation,
        )
        self._keep(logs.cycle_info_dir, record)
