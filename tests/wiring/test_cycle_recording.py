"""The supervisor's words and the records of cycles reach the files that the job names, and no other job's."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from supervisor.config import JobSpec
from supervisor.config.job_logs import JobLogs
from supervisor.core.announcements import CycleBegan, CycleEnded, LeadChanged
from supervisor.engine.job_record import JobRecord
from supervisor.wiring import cycle_recording
from tests.wiring.made import made


def record(job_id: str, logs: JobLogs) -> JobRecord:
    return JobRecord(JobSpec(job_id, ("t.py",), logs=logs), {}, 5, "/logs")


async def test_words_about_a_job_reach_its_file_and_those_about_others_do_not(tmp_path: Path):
    path = tmp_path / "words.log"
    async with made(tmp_path / "state") as all_of_it:
        jobs = {"named": record("named", JobLogs(supervisor_log=str(path))), "other": record("other", JobLogs())}
        async with contextlib.AsyncExitStack() as stack:
            words = cycle_recording.open_job_log(stack, all_of_it.base.paths, jobs)
            for job_id in ("named", "other", "unknown"):
                logging.getLogger("holdfast.jobs").warning("of %s", job_id, extra={"job_id": job_id})
            words.finish("named")
        assert path.read_text().splitlines()[0].endswith("n0 WARNING of named")
        assert len(path.read_text().splitlines()) == 1


async def test_a_cycle_that_ends_is_recorded_where_the_job_wants_it(tmp_path: Path):
    folder = tmp_path / "cycles"
    async with made(tmp_path / "state") as all_of_it:
        base, job = all_of_it.base, record("j", JobLogs(cycle_info_dir=str(folder)))
        async with contextlib.AsyncExitStack() as stack:
            followers = cycle_recording.follow(stack, base.inbox, base.publisher, base.clock, all_of_it.tasks)
            for announcement in (LeadChanged(leads=True), CycleBegan(0, ("n0",)), CycleEnded(0, ("n0",))):
                for follow in followers:
                    follow(job, announcement)
        written = [each for each in folder.rglob("*") if each.is_file()]
        assert written
        assert any('"n0"' in each.read_text() for each in written)
