"""What do readers report about jobs whose supervisors are alive, gone, or not visible from here?"""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from supervisor.core.facts import JobState
from supervisor.edges.machine import network_folders
from supervisor.edges.machine.journal.journal_reader import open_reader
from supervisor.edges.machine.journal.lost_supervisors import judged, own_identity
from supervisor.edges.machine.processes import process_table
from supervisor.edges.machine.processes.job_claims import JobClaims
from supervisor.ports.reports import JobNodeReport
from tests.edges.machine.journal.journal_samples import report, started

AT_S = 1_700_000_000
BOOT, NAMESPACE, PID, TICKS = own_identity().split(" ")


@pytest.fixture(autouse=True)
def claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CLAIM_DIR", str(tmp_path / "claims"))


@pytest.mark.parametrize(
    "recorded_by",
    [own_identity(), "", "garbage", f"{BOOT} 1 {PID} {TICKS}", f"another-boot {NAMESPACE} {PID} {TICKS}"],
    ids=["alive", "unknown", "unreadable", "in another pid namespace", "on another node"],
)
def test_a_job_is_as_it_was_recorded_where_its_supervisor_may_live(recorded_by: str) -> None:
    assert judged(report(), recorded_by=recorded_by, recorded_at_s=AT_S) == report()


def test_a_pid_that_another_process_has_now_is_no_supervisor() -> None:
    found = judged(report(), recorded_by=f"{BOOT} {NAMESPACE} {PID} {int(TICKS) - 1}", recorded_at_s=AT_S)
    assert (found.state, found.ended_at_ns, found.exit_code) == (JobState.FAILED, AT_S * 10**9, None)
    assert "without recording a verdict: it was killed, or could not write its journal" in found.reason
    assert "its processes are gone; last: all ranks run" in found.reason


def test_a_job_is_known_until_one_of_its_ranks_has_last_printed(tmp_path: Path) -> None:
    log = tmp_path / "run" / "cycle_0" / "rank_1" / "stdout.log"
    log.parent.mkdir(parents=True)
    log.touch()
    os.utime(log, (AT_S + 40, AT_S + 40))
    gone = f"{BOOT} {NAMESPACE} {PID} 1"
    found = judged(replace(report(), log_dir=str(tmp_path / "run")), recorded_by=gone, recorded_at_s=AT_S)
    assert found.ended_at_ns == (AT_S + 40) * 10**9
    os.utime(log, (AT_S - 40, AT_S - 40))
    found = judged(replace(report(), log_dir=str(tmp_path / "run")), recorded_by=gone, recorded_at_s=AT_S)
    assert found.ended_at_ns == AT_S * 10**9


def test_a_restart_of_the_node_ends_its_jobs() -> None:
    here = replace(report(), nodes=(JobNodeReport(socket.gethostname(), "ready", 0),))
    assert judged(here, recorded_by="another-boot 1 2 3", recorded_at_s=AT_S).state is JobState.FAILED


@pytest.mark.parametrize(("disk", "state"), [("xfs", JobState.FAILED), ("nfs4", JobState.RUNNING)])
def test_a_restart_of_the_node_under_another_name_ends_its_jobs_too(
    disk: str, state: JobState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_folders, "file_system", {tmp_path: disk}.__getitem__)
    named_before = replace(report(), nodes=(JobNodeReport("former-name", "ready", 0),), log_dir=str(tmp_path))
    assert judged(named_before, recorded_by="another-boot 1 2 3", recorded_at_s=AT_S).state is state
    gone = replace(named_before, log_dir=str(tmp_path / "none"))
    assert judged(gone, recorded_by="another-boot 1 2 3", recorded_at_s=AT_S).state is JobState.RUNNING


def test_a_verdict_stands() -> None:
    ended = report(state=JobState.SUCCEEDED)
    assert judged(ended, recorded_by=f"{BOOT} {NAMESPACE} {PID} 1", recorded_at_s=AT_S) == ended


def test_while_processes_of_the_job_are_left_it_is_stopping(tmp_path: Path) -> None:
    claims = JobClaims([tmp_path / "claims"])
    mine = replace(report(), submitted_at_ns=claims.take("train"))
    gone = f"{BOOT} {NAMESPACE} {PID} 1"
    found = judged(mine, recorded_by=gone, recorded_at_s=AT_S)
    assert (found.state, found.ended_at_ns) == (JobState.STOPPING, None)
    assert "processes of the job are left: nobody ends them, since their spawner is gone" in found.reason
    neighbour = JobClaims([tmp_path / "claims" / "node-1"])  # a further node of the job on this machine
    further = replace(mine, submitted_at_ns=neighbour.take("train"))
    assert judged(further, recorded_by=gone, recorded_at_s=AT_S).state is JobState.STOPPING
    neighbour.close()
    earlier = replace(mine, submitted_at_ns=1)
    assert judged(earlier, recorded_by=gone, recorded_at_s=AT_S).state is JobState.FAILED  # the id has a new run
    claims.close()


RECORDER = """
import sys
from pathlib import Path
from tests.edges.machine.journal.journal_samples import report, started
with started(Path(sys.argv[1])) as journal:
    journal.save(report())
    assert journal.flush(10)
    print("saved", flush=True)
    sys.stdin.read()
"""


def test_a_killed_supervisors_job_is_told_and_settled_as_failed(tmp_path: Path) -> None:
    root = Path(__file__).parents[4]
    with subprocess.Popen(
        [sys.executable, "-c", RECORDER, str(tmp_path / "state")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, env={**os.environ, "PYTHONPATH": f"{root}:{root}/proto"},
    ) as supervisor:  # fmt: skip
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == "saved\n"
        with open_reader(tmp_path / "state") as reader:
            assert reader.jobs()[0].state is JobState.RUNNING
        supervisor.kill()
        supervisor.wait(20)
    with open_reader(tmp_path / "state") as reader:
        assert reader.jobs()[0].state is JobState.FAILED
    assert process_table.look_up(supervisor.pid) is None
    with started(tmp_path / "state") as journal:
        journal.save(report("another"))
        assert journal.flush(10)
        told = journal.job("train")
        assert told is not None
        assert told.state is JobState.FAILED
