"""What spawners keep of a job is removed once its end is on the disk, and not before."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import anyio
import pytest
from holdfast_wire.private_supervisor import JOB_ID_VARIABLE, SPAWNER_VARIABLE

from supervisor.config import JobSpec
from supervisor.core.announcements import CycleBegan, JobEnded
from supervisor.core.facts import JobState, Verdict
from supervisor.core.node.node_messages import JobAbandoned
from supervisor.edges.machine.journal.journal import Journal
from supervisor.edges.machine.journal.timed_reads import SilentDiskError
from supervisor.edges.machine.processes.job_claims import JobClaims
from supervisor.edges.workers.spawner.dead_spawner_state import DeadSpawnerState
from supervisor.edges.workers.spawner.spawner_discovery import SpawnerFiles
from supervisor.edges.workers.spawner.spawner_lifecycle import SpawnerLifecycle
from supervisor.engine.job_record import JobRecord
from supervisor.engine.recovery.snapshot_texts import Restored
from supervisor.ports.reports import JobReport, RecordedEvent
from supervisor.wiring.supervisor_return import EVENTS_MAX, EndedJobs, Returning


class Kept:
    def __init__(self) -> None:
        self.order: list[str] = []

    def flush(self, timeout_s: float) -> bool:
        self.order.append("flushed")
        return True

    def end_run(self, job_id: str) -> Callable[[], None]:
        self.order.append(f"ended {job_id}")
        return lambda: self.order.append(f"removed {job_id}")


async def test_kept_data_is_removed_after_the_end_is_on_the_disk(tmp_path: Path):
    kept, job = Kept(), JobRecord(JobSpec("j", ("t.py",)), {}, 5, str(tmp_path))
    async with anyio.create_task_group() as tasks:
        ended = EndedJobs(cast("Journal", kept), cast("SpawnerLifecycle", kept), tasks)
        ended.announced(job, CycleBegan(0, ("n0",)))
        ended.announced(job, JobEnded(Verdict(JobState.SUCCEEDED, 0, "all ranks ended")))
    assert kept.order == ["ended j", "flushed", "removed j"], "the next run may begin before"


def _returning(services: dict[str, Any]) -> Returning:
    parts: dict[str, Any] = dict.fromkeys(Returning.__struct_fields__)
    parts |= {
        "clock": SimpleNamespace(unix_ns=lambda: 7),
        "faults": {},
        "job_service": SimpleNamespace(node=lambda: SimpleNamespace(name="n0")),
    }
    return Returning(**parts | services)


class SilentJournal:
    """The journal on a disk that does not answer."""

    def __init__(self) -> None:
        self.saved: list[JobReport] = []

    def events(self, job_id: str, *, after_sequence: int, limit: int) -> list[RecordedEvent]:
        raise SilentDiskError("cannot read the history")

    def recorded(self, job_id: str) -> JobReport | None:
        raise SilentDiskError("cannot read the history")

    def save(self, report: JobReport) -> None:
        self.saved.append(report)


async def test_a_disk_that_does_not_answer_costs_the_history_and_not_the_job(tmp_path: Path):
    journal = SilentJournal()
    job = JobRecord(JobSpec("j", ("t.py",)), {}, 5, str(tmp_path))
    returning = _returning({"journal": journal})
    restored = SimpleNamespace(record=job, sessions=None, snapshot=SimpleNamespace(sequence=3), events=())
    assert await returning._recorded_after(cast("Restored", restored)) == []  # pyright: ignore[reportPrivateUsage]
    assert job.sequence == EVENTS_MAX, "no number is used twice"
    restored.sessions = SimpleNamespace(leads=False)
    assert await returning._history(cast("Restored", restored), ()) == []  # pyright: ignore[reportPrivateUsage]
    await returning._record_lost("j", "it could not be taken over", 3)  # pyright: ignore[reportPrivateUsage]
    assert [(each.job_id, each.state) for each in journal.saved] == [("j", JobState.FAILED)]


class EndedJournal:
    """Knows a run that was submitted at 5 and ended at 20."""

    def __init__(self) -> None:
        self.saved: list[JobReport] = []

    def recorded(self, job_id: str) -> JobReport | None:
        return JobReport(job_id, JobState.STOPPED, 5, reason="it was stopped", ended_at_ns=20)

    def save(self, report: JobReport) -> None:
        self.saved.append(report)


@pytest.mark.parametrize(("begun_at_ns", "is_recorded"), [(6, False), (21, True), (None, True)])
async def test_a_recorded_end_of_the_same_run_is_not_replaced_by_a_loss(begun_at_ns: int | None, is_recorded: bool):
    journal = EndedJournal()
    returning = _returning({"journal": journal})
    await returning._record_lost("j", "its spawner is gone", begun_at_ns)  # pyright: ignore[reportPrivateUsage]
    assert [each.state for each in journal.saved] == [JobState.FAILED] * is_recorded


async def test_files_that_stayed_after_the_end_of_the_job_was_recorded_do_not_end_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A supervisor was killed before it removed them."""
    job = JobRecord(JobSpec("j", ("t.py",)), {}, 5, str(tmp_path))
    files = SpawnerFiles(tmp_path, "abcdef")
    files.note("j", 2**22)
    identity = files.identity()
    assert identity is not None
    kept = DeadSpawnerState({}, 0, (), "")
    restored = SimpleNamespace(record=job)
    monkeypatch.setattr("supervisor.edges.workers.spawner.dead_spawner_state.read", {files: kept}.get)
    monkeypatch.setattr("supervisor.engine.recovery.snapshot_texts.restored", Mock(return_value=restored))
    posted: list[object] = []
    spawners = SpawnerLifecycle(private=False, output_dir=None)
    given = {"journal": EndedJournal(), "inbox": posted, "spawners": spawners, "claims": JobClaims(())}
    returning = _returning(given)
    await returning._end_lost("j", [(files, identity)], [], "gone")  # pyright: ignore[reportPrivateUsage]
    assert not posted
    assert not spawners.left, "nothing has to be recorded"
    assert not files.record_path.exists()


def _sleeping(environment: dict[str, str], descriptors: tuple[int, ...]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    return subprocess.Popen(command, env=environment, pass_fds=descriptors, start_new_session=True)


async def test_a_claim_that_only_the_lost_run_holds_does_not_cost_its_end_though_its_record_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The disk was full when it was taken. Spawner and supervisor are dead, a helper of a rank lives on."""
    job, claims = JobRecord(JobSpec("j", ("t.py",)), {}, 5, str(tmp_path)), JobClaims([tmp_path / "claims"])
    claims.take("j")
    files = SpawnerFiles(tmp_path, "abcdef")
    marks = {JOB_ID_VARIABLE: "j", SPAWNER_VARIABLE: files.name}
    held = claims.descriptors("j")
    with _sleeping(marks, held) as helper:
        files.note("j", helper.pid)
        identity = files.identity()
        assert identity is not None
        os.truncate(tmp_path / "claims" / "j.claim", 0)
        os.close(held[0])
        kept = DeadSpawnerState({}, 0, (), "")
        snapshot = SimpleNamespace(sequence=0, machines=Mock(), coordinator=None, waiting=(), unfinished=(), reports=())
        restored = SimpleNamespace(record=job, sessions=None, events=(), snapshot=snapshot)
        monkeypatch.setattr("supervisor.edges.workers.spawner.dead_spawner_state.read", {files: kept}.get)
        monkeypatch.setattr("supervisor.engine.recovery.snapshot_texts.restored", Mock(return_value=restored))
        inbox, expected = Mock(), Mock(stop_asked=Mock(return_value=None))
        given: dict[str, Any] = {
            "job_service": Mock(meet_again=AsyncMock(), expected=expected),
            "journal": Mock(recorded=Mock(return_value=None), events=Mock(return_value=[])),
            "claims": JobClaims([tmp_path / "claims"]),
            "spawners": SpawnerLifecycle(private=False, output_dir=None),
            "inbox": inbox,
            "engine": Mock(),
            "publisher": Mock(),
        }
        await _returning(given)._end_lost("j", [(files, identity)], [], "gone")  # pyright: ignore[reportPrivateUsage]
        has_ended = helper.poll() is not None
        helper.kill()
    assert has_ended
    (posted,) = (each.args[0] for each in inbox.post.call_args_list)
    assert isinstance(posted, JobAbandoned)
    assert files.record_path.exists(), "until the end is recorded"
