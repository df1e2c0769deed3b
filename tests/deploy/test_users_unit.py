"""Does the unit for many users do what deploy/users/holdfast.service says, under a real systemd?"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.deploy import lab as labs
from tests.deploy.test_systemd_unit import LONG_WORKER, PROGRAM, ROOT, with_program
from tests.e2e import many_users

UNIT, OF_USER = ROOT / "deploy/users/holdfast.service", ROOT / "deploy/users/holdfast-user@.service"
# The exposure according to systemd-analyze, times ten. Never raised. Jobs are descendants of the others, so these can't
# restrict what a job may need: see docs/decisions/0005-service-protection.md.
EXPOSURE_MAX = {
    UNIT: 14,
    OF_USER: 76,
    ROOT / "deploy/holdfast.service": 79,
    ROOT / "deploy/user/holdfast.service": 96,
}
ALICE, BOB = 54321, 54322
HOME = "/run/lab/home"
# This service might not see the places of the checkout and its Python.
SEES_THE_CHECKOUT = f"""[Service]
ProtectHome=tmpfs
BindReadOnlyPaths={" ".join(sorted(map(str, many_users.PYTHON_FOLDERS)))}
"""


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze (Debian: systemd)")
@pytest.mark.parametrize("unit", EXPOSURE_MAX, ids=lambda unit: f"{unit.parent.name}/{unit.name}")
def test_no_unit_becomes_more_exposed(unit: Path):
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX[unit]}", "--no-pager", unit]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze (Debian: systemd)")
@pytest.mark.parametrize("unit", [UNIT, OF_USER], ids=lambda unit: unit.name)
def test_systemd_finds_nothing_to_say_about_the_unit(unit: Path, tmp_path: Path):
    copy = with_program(unit, Path("/bin/true"), tmp_path)
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("unit", EXPOSURE_MAX, ids=lambda unit: f"{unit.parent.name}/{unit.name}")
def test_each_unit_has_a_watchdog(unit: Path):
    """Its own: those of the other tests are sooner."""
    assert re.search(r"(?m)^WatchdogSec=[1-9]\d*$", unit.read_text())


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[labs.Lab]:
    if reason := labs.missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("lab")
    units = [with_program(each, PROGRAM, folder) for each in (UNIT, OF_USER)]
    with labs.started(*units, log=folder / "systemd.log") as running:
        running.run("sh", "-c", many_users.opened(Path("/run/lab/keep")))
        running.write("/run/systemd/system/holdfast.service.d/checkout.conf", SEES_THE_CHECKOUT)
        running.write("/run/systemd/system/holdfast-user@.service.d/soon.conf", "[Service]\nWatchdogSec=4\n")
        running.write("/run/lab/worker.py", LONG_WORKER)
        for name, uid in (("alice", ALICE), ("bob", BOB)):
            running.run("useradd", "--uid", str(uid), "--no-create-home", "--home-dir", f"{HOME}/{name}", name)
            running.run("install", "-d", "-o", name, "-m", "700", f"{HOME}/{name}")
        running.run("systemctl", "daemon-reload")
        running.run("systemctl", "start", "holdfast.service")
        yield running


def _as(name: str, *command: str) -> list[str]:
    variables = [f"HOME={HOME}/{name}", "PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"]
    return ["setpriv", "--reuid", name, "--regid", name, "--init-groups", "env", "-C", "/", "-i", *variables, *command]


def _jobs(lab: labs.Lab, name: str) -> list[tuple[str, str, int]]:
    """Returns the live jobs that this user sees."""
    status = lab.run(*_as(name, str(PROGRAM), "status", "-o", "json"), check=False)
    if status.returncode:
        return []
    return [(each["job_id"], each["state"], each["cycle"]) for each in json.loads(status.stdout)["jobs"]]


def _units_of(lab: labs.Lab, uid: int) -> list[dict[str, str]]:
    """Returns the units that systemd has loaded of this user's supervisor: it forgets one that has ended well."""
    listed = lab.run("systemctl", "list-units", "--all", "--plain", "--no-legend", f"holdfast-user@{uid}-*").stdout
    return [lab.show(line.split()[0]) for line in listed.splitlines()]


def _unit_of(lab: labs.Lab, uid: int) -> dict[str, str]:
    """Returns the unit of this user's supervisor."""
    (unit,) = _units_of(lab, uid)
    return unit


@pytest.fixture(scope="module")
def workers(lab: labs.Lab) -> Iterator[dict[str, str]]:
    """Yields the pids of a rank of alice's and of bob's; their jobs run through all tests of this file."""
    with ExitStack() as stack:
        pids: dict[str, str] = {}
        jobs: list[subprocess.Popen[str]] = []
        for name in ("alice", "bob"):
            run = _as(name, str(PROGRAM), "run", "--job-id", f"of-{name}", "/run/lab/worker.py")
            job = stack.enter_context(lab.popen(*run))
            stack.callback(job.kill)  # where a test has failed, its end is not to be waited for
            assert job.stdout is not None
            pids[name] = job.stdout.readline().strip()
            jobs.append(job)
        yield pids
        lab.run("systemctl", "stop", "holdfast.service")
        for job in jobs:
            job.communicate(timeout=30)  # a command that waits for its job ends a moment later than the job
        assert lab.run("pgrep", "-l", "-u", "alice,bob", check=False).stdout == ""


def test_each_user_has_a_supervisor_in_a_unit_and_a_slice_of_its_own(lab: labs.Lab, workers: dict[str, str]):
    for name, uid in (("alice", ALICE), ("bob", BOB)):
        unit = _unit_of(lab, uid)
        group = lab.run("cat", f"/proc/{workers[name]}/cgroup").stdout
        assert f"/holdfast-users-{uid}.slice/" in group
        assert f"/{unit['Id']}/holdfast-of-{name}-" in group, "a group for each cycle"
        status = dict(
            line.split(":\t", 1) for line in lab.run("cat", f"/proc/{unit['MainPID']}/status").stdout.splitlines()
        )
        assert status["Uid"].split() == [str(uid)] * 4
        assert (int(status["CapEff"], 16), status["NoNewPrivs"]) == (0, "1")
        assert _jobs(lab, name) == [(f"of-{name}", "running", 0)]


def test_a_user_who_fills_the_own_folder_fills_no_file_system_of_others(lab: labs.Lab, workers: dict[str, str]):
    own = lab.run("sh", "-c", f"echo /run/holdfast/users/{ALICE}.*").stdout.strip() + "/own"
    assert lab.run("stat", "--format=%u %a", own).stdout.split() == [str(ALICE), "700"]
    blocks, block_bytes, inodes = map(int, lab.run("stat", "--file-system", "--format=%b %S %c", own).stdout.split())
    assert (blocks * block_bytes, inodes) == (64 << 20, 16 << 10)
    filled = lab.run(*_as("alice", "sh", "-c", f"head -c 65M /dev/zero > {own}/filled"), check=False)
    lab.run("rm", f"{own}/filled")
    assert "No space left on device" in filled.stderr


def test_the_service_forbids_itself_what_jobs_may_do(lab: labs.Lab, workers: dict[str, str]):
    service = lab.show("holdfast.service")["MainPID"]
    asked = "readlink /proc/$1/ns/net /proc/$2/ns/net; grep Seccomp: /proc/$1/status /proc/$2/status | grep -o [0-9]*$"
    said = lab.run("sh", "-c", asked, "sh", service, workers["alice"]).stdout.split()
    assert said[0] != said[1]
    assert said[2:] == ["2", "0"]


def test_no_user_touches_what_is_another_ones(lab: labs.Lab, workers: dict[str, str]):
    refused = lab.run(*_as("bob", str(PROGRAM), "stop", "of-alice"), check=False)
    assert (refused.returncode, "of-alice" in refused.stderr) == (1, True)
    folder = lab.run("sh", "-c", f"echo /run/holdfast/users/{ALICE}.*").stdout.strip()
    for command in (
        f"kill -TERM {workers['alice']}",
        f"cat /proc/{workers['alice']}/environ",
        f"ls {folder}/own",
        f"cat {folder}/record.json",
        f"cat {folder}/process.json",
        f"ls /var/lib/holdfast/users/{ALICE}",
        f"echo 1 > /sys/fs/cgroup/$(sed -n s,^0::/,,p /proc/{workers['alice']}/cgroup)/cgroup.kill",
        f"echo $$ > /sys/fs/cgroup/$(sed -n s,^0::/,,p /proc/{workers['alice']}/cgroup)/cgroup.procs",
    ):
        done = lab.run(*_as("bob", "sh", "-c", command), check=False)
        assert (done.stdout, "denied" in done.stderr or "permitted" in done.stderr) == ("", True), command
    for unit in (_unit_of(lab, ALICE)["Id"], f"holdfast-users-{ALICE}.slice", "holdfast.service"):
        assert lab.run(*_as("bob", "systemctl", "stop", unit), check=False).returncode != 0
    assert _jobs(lab, "alice") == [("of-alice", "running", 0)]


def test_limits_are_those_of_the_slice_and_a_reload_changes_them(lab: labs.Lab, workers: dict[str, str]):
    drop_in = f"[Service]\nExecStart=\nExecStart={PROGRAM} daemon --config /run/lab/service.yaml\n"
    lab.write("/run/lab/service.yaml", "users: all\nuser_tasks: 300\nuser_memory_gib: 1.5\n")
    lab.write("/run/systemd/system/holdfast.service.d/config.conf", drop_in)
    lab.run("systemctl", "daemon-reload")
    lab.run("systemctl", "restart", "holdfast.service")
    labs.until(lambda: _jobs(lab, "alice") == [("of-alice", "running", 0)], 30, "the job under the next supervisor")
    limited = lab.show(f"holdfast-users-{ALICE}.slice")
    assert (limited["TasksMax"], limited["MemoryMax"]) == ("300", str(3 * 2**29))
    lab.write("/run/lab/service.yaml", "users: all\nuser_tasks: 400\nuser_cpus: 2\n")
    lab.run("systemctl", "reload", "holdfast.service")

    def is_changed() -> bool:
        limited = lab.show(f"holdfast-users-{ALICE}.slice")
        return (limited["TasksMax"], limited["MemoryMax"], limited["CPUQuotaPerSecUSec"]) == ("400", "infinity", "2s")

    labs.until(is_changed, 30, "the limits of the reload")
    lab.write("/run/lab/service.yaml", "users: all\n")
    lab.run("systemctl", "restart", "holdfast.service")

    def are_none() -> bool:
        limited = lab.show(f"holdfast-users-{ALICE}.slice")
        return [limited[name] for name in ("TasksMax", "MemoryMax", "CPUQuotaPerSecUSec")] == ["infinity"] * 3

    labs.until(are_none, 30, "no limits, as the file has none at the restart")
    labs.until(lambda: _jobs(lab, "alice") == [("of-alice", "running", 0)], 30, "the job under the next supervisor")
    assert _jobs(lab, "alice") == [("of-alice", "running", 0)]


def test_a_supervisor_that_hangs_is_ended_by_the_watchdog_and_the_next_one_has_its_job(
    lab: labs.Lab, workers: dict[str, str]
):
    before = _unit_of(lab, ALICE)
    lab.run("kill", "-STOP", before["MainPID"])

    def is_another() -> bool:
        unit = _unit_of(lab, ALICE)
        return unit["ActiveState"] == "active" and unit["MainPID"] not in ("0", before["MainPID"])

    labs.until(is_another, 40, "another supervisor")
    assert _unit_of(lab, ALICE)["NRestarts"] == "1"
    labs.until(lambda: _jobs(lab, "alice") == [("of-alice", "running", 0)], 30, "the job under it")
    assert lab.run("test", "-d", f"/proc/{workers['alice']}").returncode == 0


def _inode(lab: labs.Lab) -> str:
    """Returns that of the clients' socket: another one means that it was recreated."""
    return lab.run("stat", "--format=%i %z", "/run/holdfast/control.sock").stdout


def test_a_restart_keeps_the_socket_and_the_jobs(lab: labs.Lab, workers: dict[str, str]):
    before, pid = _inode(lab), lab.show("holdfast.service")["MainPID"]
    assert lab.show("holdfast.service")["NFileDescriptorStore"] == "1"
    lab.run("systemctl", "restart", "holdfast.service")
    assert lab.show("holdfast.service")["MainPID"] != pid
    assert _inode(lab) == before
    for name, worker in workers.items():
        labs.until(lambda name=name: _jobs(lab, name) == [(f"of-{name}", "running", 0)], 30, "the job")
        assert lab.run("test", "-d", f"/proc/{worker}").returncode == 0


def test_a_crash_of_the_service_leaves_the_supervisors_alone(lab: labs.Lab, workers: dict[str, str]):
    pid = _unit_of(lab, BOB)["MainPID"]
    lab.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", "holdfast.service")
    labs.until(lambda: _jobs(lab, "bob") == [("of-bob", "running", 0)], 30, "the job behind the next service")
    assert _unit_of(lab, BOB)["MainPID"] == pid


def test_a_reload_reads_who_is_let_in_again(lab: labs.Lab):
    service_pid = lab.show("holdfast.service")["MainPID"]
    lab.run("systemctl", "reload", "holdfast.service")
    labs.until(lambda: "read the settings again" in lab.output(), 30, "the reload")
    assert lab.show("holdfast.service")["MainPID"] == service_pid
    assert re.search(r"lets in all", lab.output())


@pytest.mark.soak
def test_a_stop_ends_the_jobs_of_a_supervisor_that_does_nothing(lab: labs.Lab, workers: dict[str, str]):
    unit = _unit_of(lab, ALICE)
    lab.run("kill", "-STOP", unit["MainPID"])
    lab.run("systemctl", "stop", "holdfast.service")
    for worker in workers.values():
        labs.until(lambda pid=worker: lab.run("test", "-d", f"/proc/{pid}", check=False).returncode, 10, lab.output())
    look = f"find /sys/fs/cgroup{unit['ControlGroup']} -name cgroup.procs -exec cat {{}} + || true"
    labs.until(lambda: not lab.run("sh", "-c", look).stdout.strip(), 10, "its control group is empty")
    states = {each["ActiveState"] for each in _units_of(lab, ALICE)}
    assert states <= {"inactive", "failed"}, "systemd starts it again"
    lab.run("systemctl", "start", "holdfast.service")
