"""What is wired so that cycles, and words about them, are written where a job's user wants them?

These are the records of cycles (--ft-cycle-info-dir) and the supervisor's words (--ft-nvrx-logfile).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from supervisor.edges.machine.logs.cycle_info import CycleInfoFiles
from supervisor.edges.machine.logs.job_words import JobWords
from supervisor.engine.cycle_records import RecordedPeers
from supervisor.engine.job_book import JobRecord
from supervisor.engine.loop import Engine
from supervisor.ports import Clock, Peers


def recorded(
    stack: contextlib.AsyncExitStack, peers: Peers, jobs: Mapping[str, JobRecord], engine: Engine, clock: Clock
) -> Peers:
    """The same peers. What is to be written when `stack` is left still is, for a bounded time."""
    files = stack.enter_context(contextlib.closing(CycleInfoFiles()))

    def path_of(job_id: str) -> str:
        job = jobs.get(job_id)
        return job.spec.logs.supervisor_log if job is not None else ""

    words = stack.enter_context(contextlib.closing(JobWords(path_of, engine.node_name)))
    words.open()
    return RecordedPeers(peers, jobs, engine, clock, files.keep)
