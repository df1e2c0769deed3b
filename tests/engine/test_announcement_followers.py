"""Does everyone who follows a job hear all of it in order, even if another one fails?"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from supervisor.config import JobSpec
from supervisor.core.announcements import Announcement, CycleBegan, CycleEnded, JobEnded, LeadChanged
from supervisor.core.facts import JobState, RestartRules
from supervisor.engine.job_record import JobRecord
from tests.engine.world import World


async def test_who_follows_a_job_hears_all_of_it_in_order_whatever_another_one_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Announcement] = []

    def break_down(job: JobRecord, announcement: Announcement) -> None:
        raise OSError(errno.ENOSPC, f"cannot take in {announcement} of {job.spec.job_id}")

    def hear(job: JobRecord, announcement: Announcement) -> None:
        assert job.spec.job_id == "j"
        heard.append(announcement)

    async with World.opened(tmp_path) as world:
        world.followers += [break_down, hear]
        spawner = await world.submit(JobSpec("j", ("t.py",), restart=RestartRules(max_restarts=1)))
        spawner.exit(0, 0, code=1)
        await world.settle()
        spawner.exit(1, 0, code=0)
        ended = await world.job_service.wait("j")
    assert ended.verdict is not None
    assert ended.verdict.state is JobState.SUCCEEDED
    assert heard == [
        LeadChanged(leads=True),
        CycleBegan(0, ("n0",)), CycleEnded(0, ("n0",)),
        CycleBegan(1, ("n0",)), CycleEnded(1, ("n0",)),
        JobEnded(ended.verdict),
    ]  # fmt: skip
    assert [each.getMessage() for each in caplog.records if "follower" in each.getMessage()] == [
        f"job j: a follower has failed at {type(each).__name__}" for each in heard
    ]
