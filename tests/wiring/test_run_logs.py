"""The logs of a run are in use from its submission to its end; old ones are removed where that is wanted."""

from __future__ import annotations

from typing import cast

import pytest

from supervisor.config import JobSpec
from supervisor.config.run_folder import run_name
from supervisor.core.announcements import CycleBegan, JobEnded
from supervisor.core.facts import JobState, Verdict
from supervisor.edges.machine.logs.log_retention import LogRetention
from supervisor.engine.job_record import JobRecord
from supervisor.wiring.run_logs import RunLogs


class Retention:
    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def claim_soon(self, run: str) -> None:
        self.told.append(("claim", run))

    def release_soon(self, run: str) -> None:
        self.told.append(("release", run))

    def tidy_soon(self) -> None:
        self.told.append(("tidy", ""))


@pytest.mark.parametrize("tidies", [True, False])
def test_a_run_is_in_use_until_its_job_has_ended(tidies: bool):
    retention, job = Retention(), JobRecord(JobSpec("j", ("t.py",)), {}, 5, "/logs")
    logs = RunLogs(cast("LogRetention", retention), {"j": job}, tidies=tidies)
    run = f"j/{run_name(5)}"
    logs.submitted("j")
    logs.announced(job, CycleBegan(0, ("n0",)))
    logs.announced(job, JobEnded(Verdict(JobState.SUCCEEDED, 0, "all ranks ended")))
    tidy = [("tidy", "")] if tidies else []
    assert retention.told == [("claim", run), *tidy, ("release", run), *tidy]
