"""Under the limits of its own shell, does each command work, or end with a sentence that names the limit?"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e import test_resources
from tests.e2e.launch import SCRIPTS, Launch, assert_nothing_left, wait_until
from tests.e2e.test_resources import python_after

if TYPE_CHECKING:
    from tests.e2e.conftest import Start

pytestmark = pytest.mark.timeout(120)

TRY_AGAIN = 75
somebody = test_resources.somebody
ADDRESSES = "leaves no room for the 128 MiB that it needs; raise that limit"
FAILS_ONCE = """
import os, sys, time
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
sys.exit(3 if first and os.environ["RANK"] == "1" else time.sleep(0.5 if first else 0))
"""


def trained(start: Start, folder: Path, kib: int) -> bool:
    """Runs a job with one failure under `ulimit -v`. Returns whether it could be run; else it was refused."""
    script = folder / "once.py"
    script.write_text(FAILS_ONCE)
    python = python_after(folder, f"ulimit -v {kib}")
    launch = start("--nproc-per-node", "4", "--max-restarts", "1", str(script), python=python)
    code = launch.wait()
    assert code in (0, TRY_AGAIN), (kib, code, launch.stderr_text())
    assert "Traceback" not in launch.stderr_text(), kib
    assert code == 0 or ADDRESSES in launch.stderr_text()
    assert_nothing_left(launch)
    return code == 0


@pytest.mark.parametrize("kib", [18_000, 42_000, 62_500, 140_000, 160_000, 250_000])
def test_with_few_addresses_a_job_trains_or_is_refused_at_the_start(start: Start, tmp_path: Path, kib: int) -> None:
    """With 42,000 the journal's thread, with 62,500 the engine was the first to find none: it ended in a traceback."""
    assert trained(start, tmp_path, kib) == (kib >= 160_000) or kib == 140_000


@pytest.mark.soak
def test_whatever_the_limit_on_addresses_is(start: Start, tmp_path: Path) -> None:
    for kib in range(130_000, 230_000, 2_000):
        trained(start, tmp_path, kib)


@pytest.fixture
def running(start: Start, tmp_path: Path) -> Launch:
    script = tmp_path / "stays.py"
    script.write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    launch = start(str(script))
    launch.wait_for_output("up", count=1)
    wait_until(lambda: "running" in launch.holdfast("status", check=False).stdout, timeout_s=30, what="an answer")
    return launch


def limited(launch: Launch, limit: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = shlex.join([sys.executable, "-m", "supervisor", *words])
    return subprocess.run(
        ["sh", "-c", f"{limit}; exec {command}"],
        env=launch.env, cwd=launch.folder, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.alone  # a command takes descriptors for each supervisor of this user that it finds
@pytest.mark.parametrize("command", ["status", "jobs", "events", "stop"])
def test_a_command_works_or_names_the_limit(running: Launch, command: str) -> None:
    """The library with which it asks ended it with SIGABRT where it found no room for its threads."""
    words = (command, running.job_id) if command in ("events", "stop") else (command,)
    for kib in (30_000, 100_000):
        refused = limited(running, f"ulimit -v {kib}", *words)
        assert (refused.returncode, refused.stderr.count("\n")) == (TRY_AGAIN, 1), refused
        assert f"cannot run holdfast {command}: the limit on addresses (ulimit -v) {ADDRESSES}" in refused.stderr
    refused = limited(running, "ulimit -n 8", *words)
    assert refused.returncode == TRY_AGAIN, refused
    assert "at most 8 files may be open (ulimit -n), and it needs 16; raise that limit" in refused.stderr
    answer = limited(running, "ulimit -v 400000; ulimit -n 16", *words)
    assert answer.returncode == 0, answer


@pytest.mark.parametrize("files", [8, 16, 32])
def test_a_job_with_too_few_descriptors_is_refused_with_the_limit(start: Start, tmp_path: Path, files: int) -> None:
    """With 12 it was a fault of Holdfast, with 20 the advice was to leave out signals."""
    launch = start("/dev/null", python=python_after(tmp_path, f"ulimit -n {files}"))
    assert launch.wait() == TRY_AGAIN
    assert f"at most {files} files may be open (ulimit -n), and it needs 48; raise that limit" in launch.stderr_text()
    assert_nothing_left(launch)


def test_a_daemon_that_finds_no_room_for_its_lock_is_started_again(tmp_path: Path) -> None:
    """After 78, systemd and Slurm's prolog start no other one, and the job that it should continue is lost."""
    command = [sys.executable, "-m", "supervisor", "daemon", f"--socket-dir={tmp_path}/r", f"--state-dir={tmp_path}/s"]
    ended = subprocess.run(
        ["sh", "-c", f"ulimit -f 0; exec {shlex.join(command)}"],
        cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert ended.returncode == TRY_AGAIN, ended
    why = f"cannot write {tmp_path}/r/supervisor.lock: File too large; raise the limit on the size of files (ulimit -f)"
    assert why in ended.stderr


def test_the_folder_of_one_that_was_killed_as_it_started_is_removed(start: Start, tmp_path: Path) -> None:
    """It is made before the lock that says who lives in it."""
    temporary = tmp_path / "t"
    temporary.mkdir()
    launch = start("/dev/null", environment={"TMPDIR": str(temporary)})
    wait_until(lambda: list(temporary.glob("holdfast-r*")), timeout_s=20, what="its folder")
    launch.process.kill()
    launch.process.wait()
    (left,) = temporary.glob("holdfast-r*")
    launch.holdfast("status", check=False)  # 75 if another test's supervisor is stopped just now
    assert left.exists()  # it could still be loading
    os.utime(left, (0, 0))
    launch.holdfast("status", check=False)
    assert not left.exists()


@test_resources.needs_other_users
def test_a_command_without_room_for_threads_says_so(somebody: tuple[int, Path]) -> None:
    uid, folder = somebody
    arguments = ("--nproc-per-node", "2", str(SCRIPTS / "filling.py"))
    full = test_resources.PROCESSES_MAX
    with test_resources.limited(folder, uid, f"--nproc={full}", arguments=arguments) as launch:
        wait_until((folder / "full").exists, timeout_s=30, what="the limit")
        words = ["prlimit", f"--nproc={full + 4}", *test_resources.as_somebody(uid), sys.executable, "-m", "supervisor"]
        for command in (("status",), ("jobs",), ("stop", launch.job_id)):
            refused = subprocess.run(
                [*words, *command], env=launch.env, cwd=folder, capture_output=True, text=True, timeout=60, check=False
            )
            assert refused.returncode == TRY_AGAIN, refused
            assert "no thread can be started" in refused.stderr
            assert "raise the limit on processes (ulimit -u" in refused.stderr
        assert test_resources.asked(launch, uid, "stop", launch.job_id).returncode == 0
