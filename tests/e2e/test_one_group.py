"""Two runs of one job id: only one lives at a time, under any supervisor, and neither touches the other's logs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.edges.machine.journal.journal_reader import open_reader
from supervisor.ports.reports import JobReport
from tests.e2e.launch import Launch, assert_nothing_left, wait_until

if TYPE_CHECKING:
    from tests.e2e.conftest import Start

pytestmark = pytest.mark.timeout(90)

TRY_AGAIN = 75
SCRIPT = """
import os, signal, sys
if sys.argv[1] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(sys.argv[1], flush=True)
if sys.argv[1] != "done":
    open(os.environ["FIFO"]).read()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "go")
    path = tmp_path / "say.py"
    path.write_text(SCRIPT)
    return path


def again(launch: Launch, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Starts another `holdfast run` with the same id."""
    return launch.holdfast("run", "--job-id", launch.job_id, *arguments, check=False)


def jobs(launch: Launch) -> list[dict[str, object]]:
    """Returns the runs of the launch's id: other supervisors of this user may have other jobs."""
    told: list[dict[str, object]] = json.loads(launch.holdfast("jobs", "-o", "json", check=False).stdout)["jobs"]
    return [job for job in told if job["job_id"] == launch.job_id]


def recorded_jobs(launch: Launch) -> list[JobReport]:
    with open_reader(launch.state_dir) as reader:
        return reader.jobs()


def test_a_second_private_run_of_a_live_id_is_refused_and_costs_the_first_nothing(start: Start, script: Path) -> None:
    launch = start(str(script), "first", environment={"FIFO": str(script.parent / "go")})
    launch.wait_for_output("first", count=1)
    refused = again(launch, str(script), "done")
    assert refused.returncode == TRY_AGAIN
    assert re.search(
        rf"cannot start job {launch.job_id}: a job of that id is live since .*, under the supervisor with pid "
        rf"{launch.process.pid}; choose another --job-id, or holdfast stop {launch.job_id}",
        refused.stderr,
    )
    assert refused.stdout == ""
    assert launch.holdfast("stop", "--wait", launch.job_id).returncode == 0
    assert launch.wait() == 93
    assert_nothing_left(launch)
    assert again(launch, str(script), "done").returncode == 0


def test_a_killed_supervisors_job_keeps_its_id_until_its_last_process_is_gone(start: Start, script: Path) -> None:
    launch = start(str(script), "stubborn", environment={"FIFO": str(script.parent / "go")})
    launch.wait_for_output("stubborn", count=1)
    wait_until(lambda: recorded_jobs(launch), timeout_s=20, what="the journal's first record")
    launch.process.send_signal(signal.SIGKILL)
    launch.process.wait()
    refused = again(launch, str(script), "done")
    assert refused.returncode == TRY_AGAIN
    assert f"their supervisor (pid {launch.process.pid}) is gone, and they end within" in refused.stderr
    (job,) = jobs(launch)
    assert (job["state"], job["ended_at"]) == ("stopping", None)
    assert "processes of the job are left: they end within its --supervisor-return-timeout" in str(job["reason"])
    wait_until(lambda: not launch.leftovers(), timeout_s=20, what="the end of the first group")
    second = again(launch, str(script), "done")
    assert (second.returncode, second.stdout) == (0, "done\n")
    assert launch.holdfast("logs", launch.job_id, "--rank", "0").stdout == "done\n"
    newest, oldest = jobs(launch)
    assert oldest["job_id"] == newest["job_id"] == launch.job_id
    assert (newest["state"], oldest["state"]) == ("succeeded", "failed")
    assert str(newest["ended_at"]) > str(newest["submitted_at"])
    assert f"its supervisor (pid {launch.process.pid}) has ended without recording" in str(oldest["reason"])
    assert oldest["log_dir"] != newest["log_dir"]
    assert Path(str(oldest["log_dir"]), "cycle_0", "rank_0", "stdout.log").read_text() == "stubborn\n"


def test_a_log_folder_that_no_file_system_could_hold_is_refused_at_once(start: Start, script: Path) -> None:
    launch = start("--log-dir", "x" * 300, str(script), "done")
    assert launch.wait() == 2
    assert "a name in it has 300 bytes, the limit is 255; choose another --log-dir" in launch.stderr_text()


class Daemon:
    """`holdfast daemon` in the place where the launch would have one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "runtime").mkdir(mode=0o700, exist_ok=True)
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST", "PET_"))}
        self.env |= {"HOLDFAST_STATE_DIR": str(root / "state"), "XDG_RUNTIME_DIR": str(root / "runtime")}
        self.sockets = root / "runtime" / "holdfast"
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "supervisor", "daemon", "--socket-dir", str(self.sockets),
             "--supervisor-return-timeout", "15"],
            env=self.env, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            wait_until(lambda: self.holdfast("nodes").returncode == 0, timeout_s=20, what="the daemon")
        except BaseException:  # nobody else has it yet
            self.end()
            raise

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def holdfast(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "supervisor", *arguments, "--socket-dir", str(self.sockets)],
            env=self.env, capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip


def test_a_daemon_that_comes_back_to_a_job_takes_no_second_group_of_it(start: Start, script: Path) -> None:
    root = script.parent / "node"
    root.mkdir()
    daemon = Daemon(root)
    environment = {
        "FIFO": str(script.parent / "go"),
        "XDG_RUNTIME_DIR": str(root / "runtime"),
        "HOLDFAST_STATE_DIR": str(root / "state"),
    }
    try:
        launch = start(str(script), "first", environment=environment)
        launch.wait_for_output("first", count=1)
        daemon.process.kill()
        daemon.process.wait()
        daemon.start()
        refused = again(launch, str(script), "done")
        assert refused.returncode == TRY_AGAIN, refused.stderr
        (script.parent / "go").write_text("")
        assert launch.wait() == 0, launch.stderr_text()
        for _ in range(2):  # the daemon's own ended id, too
            second = again(launch, str(script), "done")
            assert (second.returncode, second.stdout) == (0, "done\n"), second.stderr
        assert daemon.holdfast("logs", launch.job_id, "--rank", "0").stdout == "done\n"
    finally:
        daemon.end()
