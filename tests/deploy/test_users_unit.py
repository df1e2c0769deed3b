"""Does the unit for many users do what deploy/users/holdfast.service says, under a real systemd?"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy import lab as labs
from tests.deploy.test_systemd_unit import LONG_WORKER, PROGRAM, ROOT, with_program

UNIT = ROOT / "deploy/users/holdfast.service"
# What systemd-analyze calls the exposure, times ten. Never raised: see docs/decisions/0005-service-protection.md.
EXPOSURE_MAX = {UNIT: 76, ROOT / "deploy/holdfast.service": 79, ROOT / "deploy/user/holdfast.service": 96}


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze (Debian: systemd)")
@pytest.mark.parametrize("unit", EXPOSURE_MAX, ids=lambda unit: unit.parent.name)
def test_no_unit_becomes_more_exposed(unit: Path):
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX[unit]}", "--no-pager", unit]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze (Debian: systemd)")
def test_systemd_finds_nothing_to_say_about_the_unit(tmp_path: Path):
    copy = with_program(UNIT, Path("/bin/true"), tmp_path)
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[labs.Lab]:
    if reason := labs.missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("lab")
    with labs.started(with_program(UNIT, PROGRAM, folder), folder / "systemd.log") as running:
        running.run("systemctl", "start", "holdfast.service")
        yield running


def _inode(lab: labs.Lab) -> str:
    """Of the listening socket, by which clients come in."""
    for line in lab.run("cat", "/proc/net/unix").stdout.splitlines():
        fields = line.split()
        if fields[-1] == "/run/holdfast/control.sock" and fields[3] == "00010000":
            return fields[6]
    raise AssertionError("nobody listens")


def test_a_restart_keeps_the_socket_the_supervisors_and_the_jobs(lab: labs.Lab):
    lab.write("/run/lab/worker.py", LONG_WORKER)
    with lab.popen(str(PROGRAM), "run", "--job-id", "long-job", "/run/lab/worker.py") as job:
        assert job.stdout is not None
        worker_pid = job.stdout.readline().strip()
        before, service_pid = _inode(lab), lab.show("holdfast.service")["MainPID"]
        assert lab.show("holdfast.service")["NFileDescriptorStore"] == "1"
        groups = lab.run("cat", f"/proc/{worker_pid}/cgroup").stdout
        assert "holdfast.service/user-0/holdfast-long-job" in groups
        lab.run("systemctl", "restart", "holdfast.service")
        assert lab.show("holdfast.service")["MainPID"] != service_pid
        assert _inode(lab) == before
        assert lab.run("test", "-d", f"/proc/{worker_pid}").returncode == 0

        def is_running() -> bool:
            status = lab.run(str(PROGRAM), "status", "-o", "json", check=False)
            if status.returncode:
                return False
            jobs = json.loads(status.stdout)["jobs"]
            return [(each["job_id"], each["state"], each["cycle"]) for each in jobs] == [("long-job", "running", 0)]

        labs.until(is_running, 30, "the job under the next service")
        lab.run(str(PROGRAM), "stop", "--wait", "long-job")
        assert job.wait(timeout=30) == 1


def test_a_reload_reads_who_is_let_in_again(lab: labs.Lab):
    service_pid = lab.show("holdfast.service")["MainPID"]
    lab.run("systemctl", "reload", "holdfast.service")
    labs.until(lambda: "read the settings again" in lab.run("cat", "/run/lab/output").stdout, 30, "the reload")
    assert lab.show("holdfast.service")["MainPID"] == service_pid
    assert re.search(r"lets in all", lab.run("cat", "/run/lab/output").stdout)
