"""What spawners keep of a job is removed once its end is on the disk, and not before."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import anyio

from supervisor.config import JobSpec
from supervisor.core.announcements import CycleBegan, JobEnded
from supervisor.core.facts import JobState, Verdict
from supervisor.edges.machine.journal.journal import Journal
from supervisor.edges.workers.spawner.spawner_lifecycle import SpawnerLifecycle
from supervisor.engine.job_record import JobRecord
from supervisor.wiring.supervisor_return import EndedJobs


class Kept:
    def __init__(self) -> None:
        self.order: list[str] = []

    def flush(self, timeout_s: float) -> bool:
        self.order.append("flushed")
        return True

    def forget(self, job_id: str) -> None:
        self.order.append(f"forgot {job_id}")


async def test_kept_data_is_removed_after_the_end_is_on_the_disk(tmp_path: Path):
    kept, job = Kept(), JobRecord(JobSpec("j", ("t.py",)), {}, 5, str(tmp_path))
    async with anyio.create_task_group() as tasks:
        ended = EndedJobs(cast("Journal", kept), cast("SpawnerLifecycle", kept), tasks)
        ended.announced(job, CycleBegan(0, ("n0",)))
        ended.announced(job, JobEnded(Verdict(JobState.SUCCEEDED, 0, "all ranks ended")))
    assert kept.order == ["flushed", "forgot j"]
