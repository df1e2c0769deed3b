"""What is the earliest deadline of a job's machines on this node?

A job has two machines for each rank, and most events change few of them. So a machine is asked again only once its
state is another object: states are never changed in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from supervisor.core.node import (
    call_watch,
    gpu_reclaim,
    hang_response,
    job,
    local_call,
    node_check_round,
    rank_monitor,
    ranks_without_client,
    spawner_deadlines,
    worker_group,
)
from supervisor.core.node.job_machines import JobMachines

_Ask = Callable[[Any], float | None]
_OF_NODE: tuple[_Ask, ...] = (
    job.next_deadline_s,
    worker_group.next_deadline_s,
    spawner_deadlines.next_deadline_s,
    hang_response.next_deadline_s,
    local_call.next_deadline_s,
    node_check_round.next_deadline_s,
    gpu_reclaim.next_deadline_s,
    ranks_without_client.next_deadline_s,
)


class Deadlines:
    """A cache, which changes no decision: all are equal."""

    def __init__(self, jobs: dict[str, _OfJob] | None = None) -> None:
        self._jobs: dict[str, _OfJob] = jobs or {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Deadlines)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def of(self, job_id: str, machines: JobMachines) -> float | None:
        """Returns the job's earliest deadline."""
        known = self._jobs.get(job_id)
        if known is None:
            known = self._jobs[job_id] = _OfJob()
        return known.earliest_s if known.machines is machines else known.ask(machines)

    def without(self, job_ids: Iterable[str]) -> Deadlines:
        """Returns the cache without these jobs."""
        gone = frozenset(job_ids)
        return Deadlines({job_id: each for job_id, each in self._jobs.items() if job_id not in gone})


class _OfJob:
    __slots__ = ("_asks", "_dues_s", "_states", "earliest_s", "machines")

    def __init__(self) -> None:
        self.machines: JobMachines | None = None  # whose deadline is known
        self.earliest_s: float | None = None
        self._asks: tuple[_Ask, ...] = _OF_NODE
        self._states: tuple[object, ...] = (None,) * len(_OF_NODE)
        self._dues_s: list[float | None] = [None] * len(_OF_NODE)

    def ask(self, machines: JobMachines) -> float | None:
        """Asks the machines that have changed."""
        states: tuple[object, ...] = (
            machines.job, machines.group, machines.spawner, machines.hangs, machines.calls, machines.fitness,
            machines.reclaim, machines.plain, *machines.monitors, *machines.watches,
        )  # fmt: skip
        if len(states) != len(self._states):
            self._resize(len(machines.monitors), len(machines.watches))
        earliest_s: float | None = None
        dues_s, known = self._dues_s, self._states
        for at, state in enumerate(states):
            if state is not known[at]:
                dues_s[at] = self._asks[at](state)
            due_s = dues_s[at]
            if due_s is not None and (earliest_s is None or due_s < earliest_s):
                earliest_s = due_s
        self.machines, self._states, self.earliest_s = machines, states, earliest_s
        return earliest_s

    def _resize(self, monitors: int, watches: int) -> None:
        self._asks = (*_OF_NODE, *[rank_monitor.next_deadline_s] * monitors, *[call_watch.next_deadline_s] * watches)
        self._states = (None,) * len(self._asks)
        self._dues_s = [None] * len(self._asks)
