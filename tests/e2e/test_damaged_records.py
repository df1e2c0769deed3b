"""What a supervisor finds at its start may be damaged or replaced: that costs at most the job for which it stood."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.daemons import NodeDaemon
from tests.e2e.hangs import MONITORED
from tests.e2e.launch import Launch, wait_until

if TYPE_CHECKING:
    from tests.e2e.conftest import Start

pytestmark = pytest.mark.timeout(120)

DEEP = "[" * 30_000
TOO_DEEP = "it is nested too deeply"
# The text that replaces the record, and the reason why nobody can read it.
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pipe": (os.mkfifo, "it is a pipe, not a regular file"),
    "a folder": (Path.mkdir, "it is a folder, not a regular file"),
    "nested too deeply": (lambda path: path.write_text(DEEP), TOO_DEEP),
    "nested in an object": (lambda path: path.write_text('{"job_id": ' * 5_000), TOO_DEEP),
    "numbers that no kernel knows": (
        lambda path: path.write_text(
            json.dumps({"job_id": "j", "boot": "", "pid_namespace": 1, "pid": 1 << 70, "started_ticks": 1 << 70})
        ),
        "Expected `int` <= 2147483647 - at `$.pid`",
    ),
    "a link to a device": (lambda path: path.symlink_to("/dev/zero"), "it is a symbolic link"),
    "too large": (lambda path: path.write_text(" " * (1 << 20)), "it has more than 65536 bytes"),
}


@pytest.fixture
def daemon(tmp_path: Path) -> Generator[NodeDaemon]:
    with NodeDaemon(tmp_path / "daemon") as running:
        yield running


def started(start: Start, daemon: NodeDaemon) -> Launch:
    launch = start(
        "--nproc-per-node", "1", MONITORED, "*:*/init,beat-for=600",
        environment={"HOLDFAST_SOCKET_DIR": str(daemon.socket_dir)},
    )  # fmt: skip
    launch.wait_for_trace("initialised", count=1)
    return launch


def record_of(daemon: NodeDaemon, launch: Launch) -> Path:
    found = {json.loads(path.read_text())["job_id"]: path for path in spawners(daemon).glob("*.json")}
    return found[launch.job_id]


def spawners(daemon: NodeDaemon) -> Path:
    return daemon.socket_dir / "spawners"


def replace(path: Path, put: Callable[[Path], object]) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
    put(path)


def jobs(daemon: NodeDaemon) -> dict[str, dict[str, Any]]:
    command = [
        sys.executable, "-m", "supervisor", "jobs", "-o", "json", "--socket-dir", str(daemon.socket_dir)
    ]  # fmt: skip
    shown = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    return {job["job_id"]: job for job in json.loads(shown)["jobs"]}


def test_a_job_whose_record_is_damaged_is_taken_over_all_the_same(start: Start, daemon: NodeDaemon) -> None:
    """The kernel says which process listens where the record stood."""
    other, hit = started(start, daemon), started(start, daemon)
    record = record_of(daemon, hit)
    for name, (put, why) in DAMAGES.items():
        daemon.kill()
        replace(record, put)
        said_before = len(daemon.errors.read_text())
        daemon.start()
        assert daemon.ready_s < 10, name
        found = jobs(daemon)
        assert (found[other.job_id]["state"], found[hit.job_id]["state"]) == ("running", "running"), name
        said = daemon.errors.read_text()[said_before:]
        assert f"the record {record} of its spawner can't be read: {why}" in said, name


def end_spawner_of(daemon: NodeDaemon, record: Path) -> None:
    pid = json.loads(record.read_text())["pid"]
    daemon.kill()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), timeout_s=10, what="the end of the spawner")


def test_a_job_whose_spawner_is_gone_too_is_shown_as_lost_with_the_reason(start: Start, daemon: NodeDaemon) -> None:
    other, hit = started(start, daemon), started(start, daemon)
    record = record_of(daemon, hit)
    end_spawner_of(daemon, record)
    replace(record, os.mkfifo)
    daemon.start()
    wait_until(lambda: jobs(daemon)[hit.job_id]["state"] == "failed", timeout_s=20, what="the end of the lost job")
    found = jobs(daemon)
    assert found[other.job_id]["state"] == "running"
    reason = f"the record {record} of its spawner can't be read: it is a pipe, not a regular file"
    assert reason in found[hit.job_id]["reason"]
    assert not hit.leftovers()
    assert not record.exists()


@pytest.mark.parametrize("damage", ["a pipe", "nested too deeply", "nested in an object"])
def test_state_that_can_not_be_read_is_named_as_the_reason(start: Start, daemon: NodeDaemon, damage: str) -> None:
    other, hit = started(start, daemon), started(start, daemon)
    record = record_of(daemon, hit)
    end_spawner_of(daemon, record)
    replace(record.with_suffix(".kept"), DAMAGES[damage][0])
    daemon.start()
    wait_until(lambda: jobs(daemon)[hit.job_id]["state"] == "failed", timeout_s=20, what="the end of the lost job")
    found = jobs(daemon)
    assert found[other.job_id]["state"] == "running"
    assert (
        "its spawner has ended while no supervisor was there; how it ended is not known" in found[hit.job_id]["reason"]
    )
    assert not hit.leftovers()


def test_other_things_in_the_folders_of_a_supervisor_hold_it_up_no_longer_than_a_moment(
    start: Start, daemon: NodeDaemon
) -> None:
    """Pipes in place of the cordon, the journal, the lock's pid and unknown spawners: nobody writes into them."""
    other = started(start, daemon)
    daemon.kill()
    os.mkfifo(spawners(daemon) / "abcdef.json")
    os.mkfifo(spawners(daemon) / "fedcba.kept")
    os.mkfifo(daemon.state_dir / "cordoned")
    (journal,) = daemon.state_dir.glob("journal*.db")
    shutil.move(journal, journal.with_suffix(".aside"))
    os.mkfifo(journal)
    daemon.start()
    assert daemon.ready_s < 10
    command = [sys.executable, "-m", "supervisor", "status", "-o", "json", "--socket-dir", str(daemon.socket_dir)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    assert [(job["job_id"], job["state"]) for job in json.loads(shown)["jobs"]] == [(other.job_id, "running")]
    assert "can't be read: it is a pipe" in daemon.errors.read_text()
