"""What do people read about a node that is lost, and about a job whose supervisor is lost?"""

from __future__ import annotations

from typing import cast

import msgspec
import pytest

from supervisor.cli.control import ask_live
from supervisor.cli.jobs import row
from supervisor.cli.output import text_layout
from supervisor.cli.status import (
    _node_row,  # pyright: ignore[reportPrivateUsage]
    job_text,
)
from supervisor.cli.supervisor_discovery import FoundJob, Supervisors
from supervisor.core.facts import JobState
from supervisor.edges.machine.journal.lost_supervisors import judged, own_identity
from supervisor.errors import NoSupervisorError
from supervisor.ports.reports import JobNodeReport, JobReport, RankReport
from tests.edges.operators.fake_job_service import running


def test_ranks_that_a_spare_has_taken_are_no_longer_those_of_the_lost_node():
    lost = JobNodeReport("b", "lost", reason="node b is lost", heard_at_ns=1, lost_at_ns=2, ranks=(2, 3))
    alone = JobReport("j", JobState.RESTARTING, 1, nodes=(lost,), ranks=(RankReport(2, 0, "b", "lost"),))
    assert _node_row(lost, alone, 3)[3] == "2-3"
    taken = JobReport("j", JobState.RUNNING, 1, nodes=(lost,), ranks=(RankReport(2, 0, "c", "running"),))
    assert _node_row(lost, taken, 3)[3] == "3"


class Finds:
    """Supervisors of which none answers; a journal knows the job."""

    def __init__(self, found: FoundJob) -> None:
        self._found = found

    def find(self, name: str, *, verb: str, live_only: bool = False) -> FoundJob:
        return self._found


def test_a_job_whose_supervisor_was_killed_is_told_in_the_same_words_everywhere() -> None:
    boot, namespace, pid, _ = own_identity().split(" ")
    reported = msgspec.structs.replace(running(), supervisor_pid=int(pid))
    gone = judged(reported, recorded_by=f"{boot} {namespace} {pid} 1", recorded_at_s=1_700_000_000)
    gone = msgspec.structs.replace(gone, state=JobState.STOPPING, ended_at_ns=None)  # its processes are left
    found = FoundJob(gone, None)
    assert f"supervisor  pid {pid} has ended: this is the last state that it recorded" in job_text(found, text_layout())
    assert row(found)[-1] == gone.reason
    with pytest.raises(NoSupervisorError) as caught:
        ask_live(cast("Supervisors", Finds(found)), "train", verb="stop")
    assert str(caught.value) == f"cannot stop job train-7f3a: {gone.reason}"
    silent = FoundJob(reported, None)
    assert row(silent)[-1] == f"supervisor {pid} does not answer; last: {reported.reason}"
