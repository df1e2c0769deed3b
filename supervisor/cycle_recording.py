"""What is wired so that cycles of jobs are recorded for other programs (--ft-cycle-info-dir)?"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from supervisor.edges.machine.logs.cycle_info import CycleInfoFiles
from supervisor.engine.cycle_records import RecordedPeers
from supervisor.engine.job_book import JobRecord
from supervisor.engine.loop import Engine
from supervisor.ports import Clock, Peers


def recorded(
    stack: contextlib.AsyncExitStack, peers: Peers, jobs: Mapping[str, JobRecord], engine: Engine, clock: Clock
) -> Peers:
    """The same peers. What is to be written when `stack` is left still is, for a bounded time."""
    files = stack.enter_context(contextlib.closing(CycleInfoFiles()))
    return RecordedPeers(peers, jobs, engine, clock, files.keep)
