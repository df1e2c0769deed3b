"""What is a job's state at the end of a turn of the engine, as its spawner keeps it for the next supervisor?"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from supervisor.core.cluster import coordinator
from supervisor.core.cluster.cluster_messages import Event as Report
from supervisor.core.gpu_affinity import GpuPlace
from supervisor.core.node.job_machines import JobMachines
from supervisor.core.node.node_messages import Action
from supervisor.engine.engine_loop import EngineEvent
from supervisor.engine.job_record import CycleRecord, RecordedCycle, Shown
from supervisor.ports.reports import RecordedEvent


class StateSnapshot(msgspec.Struct, frozen=True):
    """A job at the end of a turn. Times are in CLOCK_MONOTONIC, which continues for the next supervisor."""

    MAY_LACK: ClassVar = frozenset(("waiting", "unfinished", "reports"))  # see record_text.py

    machines: JobMachines
    coordinator: coordinator.State | None
    waiting: tuple[EngineEvent, ...]  # events that the machines have not handled
    unfinished: tuple[Action, ...]  # actions with an unknown outcome
    reports: tuple[Report, ...]  # to the coordinator, waiting for a file
    submitted_at_ns: int
    log_dir: str
    spawner_number: int
    spawner_reason: str
    slower_told: bool
    running: CycleRecord | None
    pids: dict[int, int]
    shown: Shown
    sequence: int
    stop_reason: str
    kept_at_s: float
    recorded_cycle: RecordedCycle | None = None
    gpu_places: tuple[GpuPlace, ...] = ()
    taken: dict[tuple[str, int], int] = msgspec.field(default_factory=dict[tuple[str, int], int])
    recorded_before: tuple[RecordedEvent, ...] = ()


class PartedStateSnapshot(msgspec.Struct, frozen=True):
    """The state of a large job's leader. A version without this class can't read it, and would miss the nodes."""

    keepsake: StateSnapshot  # a kept name; without the nodes, which have texts of their own (node_parts.py)
    nodes: int
