"""Does the unit do what deploy/holdfast.service says, under a real systemd?"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy import lab as labs

ROOT = Path(__file__).parent.parent.parent
HEALTHD = ROOT / "deploy/nvhcd/holdfast-healthd.service"
UNITS = [ROOT / "deploy/holdfast.service", ROOT / "deploy/user/holdfast.service", HEALTHD]
PROGRAM = Path(sys.executable).with_name("holdfast")

# Each line in one write: ranks share their output, and with PYTHONUNBUFFERED print() writes each piece of a line alone.
WORKER = """
import os
from pathlib import Path
rank, world_size = os.environ["RANK"], os.environ["WORLD_SIZE"]
oom_score_adj = Path("/proc/self/oom_score_adj").read_text().strip()
print(f"rank {rank} of {world_size} oom_score_adj {oom_score_adj}\\n", end="", flush=True)
"""

LONG_WORKER = """
import os, signal
print(os.getpid(), flush=True)
signal.pause()
"""
LEFT_NONE = ("0\n", "[not set]\n")


def with_program(unit: Path, program: Path, folder: Path) -> Path:
    """Returns a copy of the unit that starts another file: `verify` needs an existing one."""
    copy = folder / unit.name
    text, replaced = re.subn(r"(?m)^ExecStart=\S+", f"ExecStart={program}", unit.read_text())
    assert replaced == 1
    copy.write_text(text)
    return copy


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze (Debian: systemd)")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.parent.name)
def test_systemd_finds_nothing_to_say_about_the_unit(unit: Path, tmp_path: Path):
    """An unknown key is only a warning with exit code 0: any output is a failure."""
    copy = with_program(unit, Path("/bin/true"), tmp_path)
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", ["holdfast.service", "users/holdfast-user@.service"])
def test_at_shutdown_jobs_save_before_network_and_network_file_systems_go(name: str):
    """systemd stops units in the reverse of this order. A user's own unit can't be ordered after the system's."""
    (after,) = re.findall(r"(?m)^After=(.*)$", (ROOT / "deploy" / name).read_text())
    assert {"network-online.target", "remote-fs.target", "nvidia-persistenced.service"} <= set(after.split())


@pytest.mark.parametrize("unit", [*UNITS, ROOT / "deploy/users/holdfast.service"], ids=lambda unit: unit.parent.name)
def test_systemd_starts_it_again_soon_and_without_end(unit: Path):
    """A job on several nodes continues only if the supervisor is back within 4 s, which include its start."""
    lines = unit.read_text().splitlines()
    soon = "RestartSec=1" if unit == HEALTHD else "RestartSec=100ms"
    assert {"Restart=always", soon, "StartLimitIntervalSec=0"} <= set(lines)


def test_containers_find_the_socket_of_the_health_service_in_a_folder_that_its_unit_makes_and_keeps():
    """Without it, the service ends with 78 after a reboot, since /run is empty, and systemd does not restart it."""
    (socket_path,) = re.findall(r"`socket_path: (\S+)`", (ROOT / "docs/node-health.md").read_text())
    unit = HEALTHD.read_text()
    (folder,) = re.findall(r"(?m)^RuntimeDirectory=(.*)$", unit)
    assert Path(socket_path).parent == Path("/var/run", folder)
    assert {"RuntimeDirectoryMode=0755", "RuntimeDirectoryPreserve=yes"} <= set(unit.splitlines())


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[labs.Lab]:
    if reason := labs.missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("lab")
    unit = with_program(UNITS[0], PROGRAM, folder)
    with labs.started(unit, log=folder / "systemd.log") as running:
        running.run("systemctl", "start", "holdfast.service")  # returns once the supervisor has sent READY=1
        yield running


@pytest.fixture
def active(lab: labs.Lab) -> labs.Lab:
    """The lab with the running service, however the previous test ended."""
    lab.run("systemctl", "start", "holdfast.service")
    return lab


def test_it_becomes_ready_and_says_what_it_does(active: labs.Lab):
    unit = active.show("holdfast.service")
    assert (unit["ActiveState"], unit["SubState"]) == ("active", "running")
    assert unit["StatusText"]
    assert unit["NRestarts"] == "0"


def test_it_answers_at_its_socket(active: labs.Lab):
    status = json.loads(active.run(str(PROGRAM), "status", "-o", "json").stdout)
    assert status["schema"] == "holdfast.status/v1"
    assert status["jobs"] == []


def test_it_runs_a_job(active: labs.Lab):
    active.write("/run/lab/worker.py", WORKER)
    # The lab shares /tmp, where ended jobs of users without a home may be: those of another run of this test, too.
    job_id = f"unit-job-{uuid.uuid4().hex[:8]}"
    job = active.run(str(PROGRAM), "run", "--nproc-per-node", "2", "--job-id", job_id, "/run/lab/worker.py")
    assert sorted(re.findall(r"rank (\d) of 2", job.stdout)) == ["0", "1"]
    # The supervisor is protected from the kernel's OOM killer; its children must not be.
    assert re.findall(r"oom_score_adj (-?\d+)", job.stdout) == ["0", "0"]
    jobs = json.loads(active.run(str(PROGRAM), "jobs", "-o", "json").stdout)["jobs"]
    assert [job["state"] for job in jobs if job["job_id"] == job_id] == ["succeeded"]


def test_it_comes_back_after_a_crash(active: labs.Lab):
    pid = active.show("holdfast.service")["MainPID"]
    active.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", "holdfast.service")

    def came_back() -> bool:
        unit = active.show("holdfast.service")
        return unit["ActiveState"] == "active" and unit["MainPID"] not in ("0", pid)

    labs.until(came_back, 30, "active again with another pid")
    assert json.loads(active.run(str(PROGRAM), "status", "-o", "json").stdout)["jobs"] == []


def test_the_watchdog_ends_a_supervisor_that_stands_still(active: labs.Lab):
    drop_in = "/run/systemd/system/holdfast.service.d/watchdog.conf"
    active.write(drop_in, "[Service]\nWatchdogSec=2\nRestart=no\n")
    active.run("systemctl", "daemon-reload")
    active.run("systemctl", "restart", "holdfast.service")
    active.run("systemctl", "kill", "--kill-whom=main", "--signal=STOP", "holdfast.service")
    labs.until(lambda: active.show("holdfast.service")["Result"] == "watchdog", 30, "Result=watchdog")
    active.run("rm", drop_in)
    active.run("systemctl", "daemon-reload")
    active.run("systemctl", "reset-failed", "holdfast.service")


def test_the_watchdog_is_fed(active: labs.Lab):
    """Waits three times the limit; the service keeps running."""
    active.write("/run/systemd/system/holdfast.service.d/watchdog.conf", "[Service]\nWatchdogSec=1\nRestart=no\n")
    active.run("systemctl", "daemon-reload")
    active.run("systemctl", "restart", "holdfast.service")
    started_us = int(active.show("holdfast.service")["ExecMainStartTimestampMonotonic"])

    def has_run_for_three_seconds() -> bool:
        unit = active.show("holdfast.service")
        assert (unit["ActiveState"], unit["Result"]) == ("active", "success")
        fed_us = int(unit["WatchdogTimestampMonotonic"])
        return fed_us > started_us + 3_000_000

    labs.until(has_run_for_three_seconds, 30, "watchdog fed after three seconds")
    active.run("rm", "/run/systemd/system/holdfast.service.d/watchdog.conf")
    active.run("systemctl", "daemon-reload")


def test_stop_ends_it_and_its_jobs(active: labs.Lab):
    active.write("/run/lab/worker.py", LONG_WORKER)
    # A name of its own: where an earlier attempt has failed, its job may still run.
    job_id = f"long-job-{uuid.uuid4().hex[:8]}"
    with active.popen(str(PROGRAM), "run", "--job-id", job_id, "/run/lab/worker.py") as job:
        assert job.stdout is not None
        worker_pid = job.stdout.readline().strip()
        active.run("systemctl", "stop", "holdfast.service")
        assert job.wait(timeout=30) == 1
    unit = active.show("holdfast.service")
    assert (unit["ActiveState"], unit["Result"], unit["ExecMainStatus"]) == ("inactive", "success", "0")
    assert active.run("test", "-d", f"/proc/{worker_pid}", check=False).returncode == 1
    assert active.run("systemctl", "show", "holdfast.service", "-p", "TasksCurrent").stdout.split("=")[1] in LEFT_NONE
    asked = active.run(str(PROGRAM), "status", "--socket-dir", "/run/holdfast", check=False)
    assert asked.returncode == 69, asked.stderr
