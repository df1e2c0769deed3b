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
import msgspec
import pytest
from holdfast_wire import spawner_link as link
from holdfast_wire.private_supervisor import JOB_ID_VARIABLE, SPAWNER_VARIABLE

from supervisor.config import JobSpec
from supervisor.core.announcements import CycleBegan, JobEnded
from supervisor.core.facts import JobState, Verdict
from supervisor.core.node.node_messages import JobAbandoned, SpawnerLost
from supervisor.edges.machine.journal.journal import Journal
from supervisor.edges.machine.journal.lost_supervisors import judged, own_identity
from supervisor.edges.machine.journal.timed_reads import SilentDiskError
from supervisor.edges.machine.processes.job_claims import JobClaims
from supervisor.edges.workers.spawner.dead_spawner_state import DeadSpawnerState
from supervisor.edges.workers.spawner.kept_succession import SUCCESSION, SUCCESSOR, Succession
from supervisor.edges.workers.spawner.spawner_discovery import FoundSpawner, SpawnerFiles, SpawnerIdentity
from supervisor.edges.workers.spawner.spawner_lifecycle import SpawnerLifecycle
from supervisor.edges.workers.spawner.spawner_reconnect import SpawnerReconnect
from supervisor.engine.job_record import JobRecord
from supervisor.engine.recovery import record_text, snapshot_texts
from supervisor.engine.recovery.snapshot_texts import STATE, Restored
from supervisor.ports.reports import JobReport, RecordedEvent
from supervisor.wiring.supervisor_return import EVENTS_MAX, EndedJobs, Returning
from tests.edges.machine.journal.journal_samples import event, report, started
from tests.engine.world import World

WELCOME = Mock(ready=link.Ready(2**22, link.PROTOCOL, "3.11", "fork", "", (), ""))


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

    def recorded_events(
        self, job_id: str, submitted_at_ns: int, *, after_sequence: int, limit: int
    ) -> list[RecordedEvent]:
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


async def test_events_of_an_earlier_run_of_the_id_are_none_of_this_run(tmp_path: Path):
    """Nothing of this run had reached the disk when its supervisor was killed."""
    with started(tmp_path / "state") as journal:
        journal.save(report("j", submitted_at_ns=4, state=JobState.SUCCEEDED))
        for sequence in range(1, 41):
            journal.record(event(sequence, "j"))
    job = JobRecord(JobSpec("j", ("t.py",)), {}, 5, str(tmp_path), sequence=6)
    snapshot = SimpleNamespace(sequence=6)
    restored = cast("Restored", SimpleNamespace(record=job, sessions=Mock(leads=False), snapshot=snapshot, events=()))
    with started(tmp_path / "state") as journal:
        returning = _returning({"journal": journal})
        assert await returning._recorded_after(restored) == []  # pyright: ignore[reportPrivateUsage]
        assert await returning._history(restored, ()) == []  # pyright: ignore[reportPrivateUsage]
    assert job.sequence == 6


class EndedJournal:
    """Knows a run that was submitted at 5 and ended at 20."""

    def __init__(self) -> None:
        self.saved: list[JobReport] = []

    def recorded(self, job_id: str, submitted_at_ns: int | None = None) -> JobReport | None:
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


def _services(folder: Path) -> dict[str, Any]:
    """Returns what the end of a lost job needs. The journal knows nothing."""
    return {
        "job_service": Mock(meet_again=AsyncMock(), expected=Mock(stop_asked=Mock(return_value=None))),
        "journal": Mock(recorded=Mock(return_value=None), recorded_events=Mock(return_value=[])),
        "claims": JobClaims([folder / "claims"]),
        "spawners": SpawnerLifecycle(private=False, output_dir=None),
        "inbox": Mock(),
        "engine": Mock(),
        "publisher": Mock(),
    }


def _posted(services: dict[str, Any]) -> list[object]:
    return [each.args[0] for each in services["inbox"].post.call_args_list]


class Left(msgspec.Struct):
    """What dead spawners of job `j` left, with the phases that the job was in."""

    folder: Path
    running: dict[str, str]
    closing: dict[str, str]  # all ranks have ended with code 0, and its spawner is to end
    kept: dict[SpawnerFiles, DeadSpawnerState] = msgspec.field(default_factory=dict[SpawnerFiles, DeadSpawnerState])

    def put(
        self, texts: dict[str, str], *, turns: int, number: int | None = None
    ) -> tuple[SpawnerFiles, SpawnerIdentity]:
        """Leaves the files of one more spawner. `number`: that of the one that it has replaced."""
        kept = msgspec.structs.replace(
            snapshot_texts.restored(texts).snapshot, spawner_number=number or len(self.kept) + 1
        )
        stood = Succession(2**22, {}, 0, is_bare=False, is_ending=False, held=(), turns=turns)
        texts = texts | {STATE: record_text.write(kept), SUCCESSION: msgspec.json.encode(stood).decode()}
        files = SpawnerFiles(self.folder, f"spawner{len(self.kept) + 1}")
        files.note("j", 2**22)
        self.kept[files] = DeadSpawnerState(texts, 0, (), "")
        identity = files.identity()
        assert identity is not None
        return files, identity


@pytest.fixture
async def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Left:
    async with anyio.create_task_group() as tasks:
        world = World(tasks, tmp_path / "logs", keeps=True)
        spawner = await world.submit(JobSpec("j", ("t.py",)))
        spawner.silent.add(link.End)
        found = Left(tmp_path, dict(spawner.kept), {})
        spawner.exit(0, 0, code=0)
        await world.settle()
        found.closing = dict(spawner.kept)
        tasks.cancel_scope.cancel()
        monkeypatch.setattr("supervisor.edges.workers.spawner.dead_spawner_state.read", found.kept.get)
        return found
    raise AssertionError("the tasks were cancelled before")


def _recorded_as_ended(submitted_at_ns: int) -> JobReport:
    """Returns the report of the turn that knows the verdict: it has no end yet."""
    return JobReport("j", JobState.SUCCEEDED, submitted_at_ns, reason="all ranks ended with exit code 0")


def _judged_as_lost(submitted_at_ns: int) -> JobReport:
    """Returns the report that the next supervisor has settled as it opened the journal."""
    boot, namespace, pid, _ = own_identity().split(" ")
    live = JobReport("j", JobState.RUNNING, submitted_at_ns, reason="all ranks run")
    return judged(live, recorded_by=f"{boot} {namespace} {pid} 1", recorded_at_s=2_000)


@pytest.mark.parametrize("recorded_as", [_recorded_as_ended, _judged_as_lost])
async def test_a_verdict_without_an_end_and_a_judged_report_are_no_recorded_end(
    recorded_as: Callable[[int], JobReport], left: Left
):
    """All ranks ended with code 0, then the supervisor was killed, and the spawner ended."""
    services = _services(left.folder)
    recorded = recorded_as(snapshot_texts.restored(left.closing).record.submitted_at_ns)
    assert recorded.state.has_ended
    services["journal"].recorded.return_value = recorded
    place = left.put(left.closing, turns=3)
    await _returning(services)._end_lost("j", [place], [], "gone")  # pyright: ignore[reportPrivateUsage]
    assert [type(each) for each in _posted(services)] == [SpawnerLost]
    assert place[0].record_path.exists(), "until the end is recorded"


@pytest.mark.parametrize(("holder", "state"), [("nobody", JobState.SUCCEEDED), ("another run", JobState.FAILED)])
async def test_a_verdict_without_an_end_stays_though_what_is_kept_can_t_be_read(
    holder: str, state: JobState, left: Left
):
    services = _services(left.folder)
    place = left.put(left.closing, turns=3)
    left.kept[place[0]] = DeadSpawnerState({}, 0, (), "")
    decided = msgspec.structs.replace(_recorded_as_ended(5), exit_code=0)
    services["journal"].recorded.return_value = decided
    if holder == "another run":
        services["claims"].take("j")
    await _returning(services)._end_lost("j", [place], [], "gone")  # pyright: ignore[reportPrivateUsage]
    (saved,) = (each.args[0] for each in services["journal"].save.call_args_list)
    assert (saved.state, saved.ended_at_ns) == (state, 7)
    assert (saved == msgspec.structs.replace(decided, ended_at_ns=7)) == (state is JobState.SUCCEEDED)
    services["claims"].release("j")


async def test_of_two_lost_spawners_the_later_one_says_how_far_the_job_came(left: Left):
    """The first one had run for a day, and each counts its own turns."""
    services = _services(left.folder)
    first, second = left.put(left.running, turns=5000), left.put(left.closing, turns=3)
    await _returning(services)._end_lost("j", [first, second], [], "gone")  # pyright: ignore[reportPrivateUsage]
    (lost,) = _posted(services)
    assert isinstance(lost, SpawnerLost)
    assert lost.number == 2
    assert (first[0].record_path.exists(), second[0].record_path.exists()) == (False, True)


async def test_a_spawner_that_keeps_nothing_yet_leaves_the_end_to_the_one_before_it(
    left: Left, monkeypatch: pytest.MonkeyPatch
):
    services = _services(left.folder)
    first, files = left.put(left.running, turns=5000), SpawnerFiles(left.folder, "spawner2")
    files.note("j", 2**22)
    identity = files.identity()
    assert identity is not None
    fresh, found = Mock(files=files, pid=2**22, texts={}, welcome=WELCOME), list[FoundSpawner]()

    async def reach(*_: object) -> None:
        found.append(fresh)

    monkeypatch.setattr(SpawnerReconnect, "run", reach)
    recorded = [first, (files, identity)]
    await _returning(services)._take_back("j", recorded, found)  # pyright: ignore[reportPrivateUsage]
    (abandoned,) = _posted(services)
    assert isinstance(abandoned, JobAbandoned)
    assert "its spawner was lost, and the next one (pid 4194304) had nothing of the job yet" in abandoned.reason
    fresh.kill.assert_called_once()
    assert not found, "it is closed, and its descriptors' numbers may be in use again"


@pytest.mark.parametrize("kept_turns", [4, None])
async def test_a_replaced_spawner_stands_for_the_job_only_if_its_successor_has_kept_nothing_newer(
    kept_turns: int | None, left: Left, monkeypatch: pytest.MonkeyPatch
):
    services, went_on = _services(left.folder), Mock()
    first, second = left.put(left.running, turns=3), left.put(left.closing, turns=kept_turns or 0, number=1)
    texts = left.kept[first[0]].texts | {SUCCESSOR: "4194305"}
    replaced = Mock(files=first[0], pid=2**22, texts=texts, welcome=WELCOME)
    if kept_turns is None:
        del left.kept[second[0]]
    found = list[FoundSpawner]()

    async def reach(*_: object) -> None:
        found.append(replaced)

    monkeypatch.setattr(SpawnerReconnect, "run", reach)
    monkeypatch.setattr(Returning, "_go_on", went_on)
    await _returning(services)._take_back("j", [first, second], found)  # pyright: ignore[reportPrivateUsage]
    assert [type(each) for each in _posted(services)] == ([] if kept_turns is None else [SpawnerLost])
    assert (went_on.called, replaced.kill.called) == (kept_turns is None, kept_turns is not None)
    assert (first[0].record_path.exists(), second[0].record_path.exists()) == (went_on.called, not went_on.called)


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
        services = _services(tmp_path)
        await _returning(services)._end_lost("j", [(files, identity)], [], "gone")  # pyright: ignore[reportPrivateUsage]
        has_ended = helper.poll() is not None
        helper.kill()
    assert has_ended
    (posted,) = _posted(services)
    assert isinstance(posted, JobAbandoned)
    assert files.record_path.exists(), "until the end is recorded"
