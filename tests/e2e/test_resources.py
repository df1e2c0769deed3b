"""Rows A15, A16 and C of the fault matrix on a live job: processes, memory, descriptors, disks, sockets run out."""

from __future__ import annotations

import contextlib
import os
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.hangs import BUSY_S, EARLY_S, MONITORED, has_v1, overshoot_s, told, v1_cgroup
from tests.e2e.launch import SCRIPTS, Launch, assert_nothing_left, launched, wait_until
from tests.e2e.scripts.odd_bytes import ODD_BYTES

if TYPE_CHECKING:
    from tests.e2e.conftest import Start

pytestmark = pytest.mark.timeout(90)

HANG_PLAN = "0:1/init,beat,hang=sleep"
MEMORY_BYTES_MAX = 400 << 20
PIDS_MAX = 80
FLOODED = ("slowest_s", "slowest_write_s", "written", "used_s")  # of monitored.py
MB_PER_CPU_S = 100  # of spawner and supervisor together; some 900 on a quiet machine


def python_after(folder: Path, command: str) -> str:
    """Returns an interpreter that first runs a shell `command`."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\n{command}\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    return str(python)


def assert_found_in_time(launch: Launch, limit_s: float, *, late_s_max: float = BUSY_S) -> None:
    (event,) = told(launch, "hang_detected")
    (beat,) = [line for line in launch.traced("beat") if line["rank"] == event["rank"]]
    assert -EARLY_S <= overshoot_s(event, beat, limit_s) <= late_s_max


# --- A: processes and memory ---------------------------------------------------------------------------------------


@pytest.mark.skipif(not has_v1("pids"), reason="needs a writable cgroup v1 pids controller")
def test_a15_a_fork_bomb_is_ended_and_takes_nobody_along(start: Start, tmp_path: Path) -> None:
    with v1_cgroup("pids", f"holdfast-test-{os.getpid()}") as group:
        (group / "pids.max").write_text(str(PIDS_MAX))
        launch = start(
            "--nproc-per-node", "2", "--max-restarts", "1", "--workers-stop-timeout", "1",
            MONITORED, "0:1/bomb", "1:*/exit=0",
            python=python_after(tmp_path, f"echo $$ > {group}/cgroup.procs"),
        )  # fmt: skip
        assert launch.wait() == 0, launch.stderr_text()
        assert launch.traced("bombed")
        (failed,) = told(launch, "worker_failed")
        assert str(failed["reason"]).endswith("failed with exit code 3")
        assert_nothing_left(launch)


def as_somebody(uid: int) -> list[str]:
    """Returns the words before a command that make it a user's whose processes count, which root's don't."""
    # The interpreter may be in a folder of root's.
    reads = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *reads]


@contextlib.contextmanager
def limited(folder: Path, uid: int, *limits: str, arguments: Sequence[str]) -> Generator[Launch]:
    words = shlex.join(["prlimit", *limits, *as_somebody(uid), sys.executable])
    with launched(folder, *arguments, python=python_after(folder, f'exec {words} "$@"')) as launch:
        yield launch


def asked(launch: Launch, uid: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of the same user that has no such limit itself."""
    return subprocess.run(
        [*as_somebody(uid), sys.executable, "-m", "supervisor", *words],
        env=launch.env, cwd=launch.folder, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


@pytest.fixture
def somebody() -> Generator[tuple[int, Path]]:
    """Yields the id of a user who has no process, and a folder of theirs."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-test-"))
    uid = 30_000 + os.getpid() % 30_000
    runtime = folder / "runtime"
    runtime.mkdir(mode=0o700)
    for each in (folder, runtime):
        os.chown(each, uid, uid)
    folder.chmod(0o755)
    yield uid, folder
    shutil.rmtree(folder)


needs_other_users = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv") or not shutil.which("prlimit"),
    reason="needs root, setpriv and prlimit (Debian: util-linux)",
)

PROCESSES_MAX = 60
ASKED = (
    ("status", "JOB"), ("status",), ("jobs",), ("stacks", "JOB"), ("events", "JOB"), ("logs", "JOB"), ("status", "JOB"),
)  # fmt: skip


@needs_other_users
def test_a15_commands_while_the_limit_of_processes_is_full_cost_the_job_nothing(somebody: tuple[int, Path]) -> None:
    """A supervisor that needed a thread for an answer would end, as gRPC's library ends its process."""
    uid, folder = somebody
    arguments = ("--nproc-per-node", "2", "--max-restarts", "1", str(SCRIPTS / "filling.py"))
    with limited(folder, uid, f"--nproc={PROCESSES_MAX}", arguments=arguments) as launch:
        wait_until((folder / "full").exists, timeout_s=30, what="the limit")
        answers = {
            words: asked(launch, uid, *(launch.job_id if word == "JOB" else word for word in words)) for words in ASKED
        }
        assert launch.process.poll() is None, launch.stderr_text()
        for words, answer in answers.items():
            assert answer.returncode == 0 or "no thread can be started" in answer.stderr, (words, answer)
        assert "running" in answers["status", "JOB"].stdout
        follower = subprocess.Popen(
            [*as_somebody(uid), sys.executable, "-m", "supervisor", "events", launch.job_id, "--follow"],
            env=launch.env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert follower.stdout is not None
        first = follower.stdout.readline()
        (folder / "go").touch()
        assert launch.wait() == 0, launch.stderr_text()
        told = first + follower.communicate(timeout=20)[0]
        assert "was killed by SIGKILL" in told or "no thread can be started" in told
        assert_nothing_left(launch)
        assert '"worker_failed"' in asked(launch, uid, "events", launch.job_id, "-o", "jsonl").stdout


@needs_other_users
def test_a15_a_job_can_be_stopped_while_the_limit_of_processes_is_full(somebody: tuple[int, Path]) -> None:
    uid, folder = somebody
    arguments = ("--nproc-per-node", "2", str(SCRIPTS / "filling.py"))
    with limited(folder, uid, f"--nproc={PROCESSES_MAX}", arguments=arguments) as launch:
        wait_until((folder / "full").exists, timeout_s=30, what="the limit")
        answer = asked(launch, uid, "stop", launch.job_id)
        assert answer.returncode == 0, answer
        assert launch.wait() == 93, launch.stderr_text()
        assert_nothing_left(launch)


@needs_other_users
@pytest.mark.parametrize("processes", [1, 2, 3, 4, 6, 8])
def test_a15_a_limit_that_leaves_no_room_for_a_job_ends_with_a_sentence(
    somebody: tuple[int, Path], processes: int
) -> None:
    uid, folder = somebody
    arguments = ("--nproc-per-node", "8", str(SCRIPTS / "filling.py"))
    with limited(folder, uid, f"--nproc={processes}", arguments=arguments) as launch:
        code = launch.wait()
        assert code in (1, 75), (code, launch.stderr_text())
        assert "ulimit -u" in launch.stderr_text()
        assert "Traceback" not in launch.stderr_text()
        assert_nothing_left(launch)


@pytest.mark.skipif(not has_v1("memory"), reason="needs a writable cgroup v1 memory controller")
def test_a16_a_worker_that_the_kernel_killed_for_its_memory_is_told_as_that(start: Start, tmp_path: Path) -> None:
    with v1_cgroup("memory", f"holdfast-test-{os.getpid()}") as group:
        (group / "memory.limit_in_bytes").write_text(str(MEMORY_BYTES_MAX))
        launch = start(
            "--nproc-per-node", "2", "--max-restarts", "1", MONITORED, "0:1/init,devour", "1:*/exit=0",
            python=python_after(tmp_path, f"echo $$ > {group}/cgroup.procs"),
        )  # fmt: skip
        assert launch.wait() == 0, launch.stderr_text()
        (failed,) = told(launch, "worker_failed")
        assert failed["rank"] == 1
        assert str(failed["reason"]).endswith("was killed by SIGKILL because memory ran out")
        assert_nothing_left(launch)


def test_b7_a_command_under_a_limit_on_memory_costs_the_job_nothing(start: Start, tmp_path: Path) -> None:
    """With 400 MB of addresses, a library with threads of its own finds no room for their stacks."""
    launch = start(
        "--nproc-per-node", "2", "--max-restarts", "1", MONITORED, "0:1/mark,await-file,exit=3", "1:*/exit=0",
        python=python_after(tmp_path, "ulimit -v 400000"),
    )  # fmt: skip
    launch.wait_for_trace("mark")
    for command in ("status", "stacks", "logs", "events", "status"):
        launch.holdfast(command, launch.job_id, check=False)
    assert "running" in launch.holdfast("status", launch.job_id).stdout
    (launch.folder / "go").touch()
    assert launch.wait() == 0, launch.stderr_text()
    assert launch.kinds().count("cycle_started") == 2
    assert_nothing_left(launch)


# --- C: the worker socket ------------------------------------------------------------------------------------------


def socket_of(launch: Launch) -> Path:
    (first, *_) = launch.wait_for_trace("started")
    return Path(str(first["socket"]))


def test_c1_a_deleted_socket_comes_back_and_clients_find_it(start: Start) -> None:
    launch = start(
        "--ft-rank-heartbeat-timeout", "1",
        MONITORED, "0:0/init,mark,sleep=0.5,shutdown,await-socket,init,beat,hang=sleep",
    )  # fmt: skip
    path = socket_of(launch)
    launch.wait_for_trace("mark")
    before = path.lstat().st_ino
    path.unlink()

    def is_new() -> bool:
        with contextlib.suppress(FileNotFoundError):
            return path.lstat().st_ino != before
        return False

    wait_until(is_new, timeout_s=10, what="the socket")
    assert launch.wait() == 1
    assert_found_in_time(launch, 1)


@contextlib.contextmanager
def connections(path: Path, count: int) -> Generator[list[socket.socket]]:
    """Opens as many as are accepted, at most `count`."""
    opened: list[socket.socket] = []
    try:
        with contextlib.suppress(BlockingIOError):
            for _ in range(count):
                one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                opened.append(one)
                one.connect(str(path))
        yield opened
    finally:
        for one in opened:
            one.close()


def test_c2_a_full_backlog_delays_monitoring_and_nothing_else(start: Start) -> None:
    launch = start(
        "--ft-rank-heartbeat-timeout", "1",
        MONITORED, "0:0/mark,await-file,init,beat-for=1,await-page,beat,hang=sleep",
    )  # fmt: skip
    path = socket_of(launch)
    launch.wait_for_trace("mark")
    launch.process.send_signal(signal.SIGSTOP)
    with connections(path, 20_000) as opened:
        assert len(opened) < 20_000, "the backlog took them all"
        (launch.folder / "go").touch()
        (initialised,) = launch.wait_for_trace("initialised")
        (initialises,) = launch.traced("initialises")
        assert float(str(initialised["at"])) - float(str(initialises["at"])) < 2 + BUSY_S
        launch.wait_for_trace("beaten")
    launch.process.send_signal(signal.SIGCONT)
    assert launch.wait() == 1
    assert_found_in_time(launch, 1)


def test_c5_peers_that_send_half_a_frame_or_never_read_hold_up_nobody(start: Start) -> None:
    launch = start(
        "--nproc-per-node",
        "2",
        "--ft-rank-heartbeat-timeout",
        "1",
        MONITORED,
        "0:1/mark,await-file,init,beat,hang=sleep",
    )
    path = socket_of(launch)
    launch.wait_for_trace("mark")
    with connections(path, 100) as opened:
        for number, one in enumerate(opened):
            with contextlib.suppress(OSError):
                one.send((b"", b"\0", b"\0\0\0\x20half", b"\xff\xff\xff\xff")[number % 4])
        (launch.folder / "go").touch()
        assert launch.wait() == 1
    assert_found_in_time(launch, 1)


def test_c7_with_64_descriptors_a_job_is_still_watched_and_restarted(start: Start, tmp_path: Path) -> None:
    launch = start(
        "--nproc-per-node", "3", "--max-restarts", "1", "--ft-rank-heartbeat-timeout", "1",
        MONITORED, "0:1/mark,await-file,init,beat,hang=sleep", "1:*/exit=0",
        python=python_after(tmp_path, "ulimit -n 64"),
    )  # fmt: skip
    path = socket_of(launch)
    launch.wait_for_trace("mark")
    with connections(path, 100):
        launch.holdfast("status", check=False)  # a question may get no answer now; the job continues
        (launch.folder / "go").touch()
        assert launch.wait() == 0, launch.stderr_text()
    # Its clocks start once its client gets in, which may have to wait until strangers are dropped.
    assert_found_in_time(launch, 1, late_s_max=15)
    assert_nothing_left(launch)


# --- C: output -----------------------------------------------------------------------------------------------------


def test_the_supervisor_raises_its_limit_of_descriptors_and_workers_keep_the_callers(
    start: Start, tmp_path: Path
) -> None:
    """The first spawner, started before the raise, and the next."""
    script = tmp_path / "limits.py"
    script.write_text(
        "import os, resource, time\n"
        "cycle, soft = os.environ['HOLDFAST_CYCLE'], resource.getrlimit(resource.RLIMIT_NOFILE)[0]\n"
        "print(f'cycle {cycle} soft {soft}', flush=True)\n"
        "time.sleep(600 if cycle == '0' else 0)\n"
    )
    python = python_after(tmp_path, "ulimit -S -n 300")
    launch = start("--nproc-per-node", "1", "--max-restarts", "1", str(script), python=python)
    launch.wait_for_output("cycle 0 soft 300\n", count=1)  # a worker writes its end apart
    soft, hard = resource.prlimit(launch.process.pid, resource.RLIMIT_NOFILE)
    assert 300 < soft == hard
    (spawner,) = [pid for pid in launch.leftovers() if Path(f"/proc/{pid}/comm").read_text() == "hf-spawner\n"]
    os.kill(spawner, signal.SIGKILL)
    assert launch.wait() == 0, launch.stderr_text()
    assert launch.stdout_text() == "cycle 0 soft 300\ncycle 1 soft 300\n"


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if done.returncode != 0:
        pytest.skip("needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_c8_a_full_disk_costs_log_bytes_that_are_counted_and_nothing_else(start: Start, small_disk: Path) -> None:
    """The spawner writes the log. With --redirects the script writes it, and sees the full disk, as elsewhere."""
    launch = start(
        "--nproc-per-node", "2", "--ft-rank-heartbeat-timeout", "2", "--log-dir", str(small_disk), "--tee", "3",
        MONITORED, "0:0/init,flood=5,exit=0", "0:1/init,beat-for=1,exit=0",
    )  # fmt: skip
    assert launch.wait() == 0, launch.stderr_text()
    assert "hang_detected" not in launch.kinds()
    dropped = told(launch, "output_dropped")
    assert dropped
    assert "of output of rank 0 were not kept" in str(dropped[0]["reason"])


@pytest.mark.alone
@pytest.mark.parametrize("how", [(), ("--tee", "3")], ids=["default", "tee"])
def test_c9_a_flood_of_output_disturbs_no_heartbeat(start: Start, tmp_path: Path, how: tuple[str, ...]) -> None:
    """All of it goes through the spawner. With --redirects, a rank writes its own file."""
    logs = tmp_path / "logs"
    launch = start(
        "--nproc-per-node", "2", "--ft-rank-heartbeat-timeout", "2", "--log-dir", str(logs), *how,
        MONITORED, "0:*/init,flood=40,exit=0",
    )  # fmt: skip
    assert launch.wait() == 0, launch.stderr_text()
    assert "hang_detected" not in launch.kinds()
    flooded = [{name: float(str(line[name])) for name in FLOODED} for line in launch.traced("flooded")]
    assert len(flooded) == 2
    assert max(max(each["slowest_s"], each["slowest_write_s"]) for each in flooded) < 1
    written, used_s = sum(each["written"] for each in flooded), max(each["used_s"] for each in flooded)
    assert written > MB_PER_CPU_S * 1e6 * used_s, f"{written / 1e6:.0f} MB took {used_s:.2f} s of CPU"
    assert sum(file.stat().st_size for file in logs.rglob("stdout.log")) == written


@pytest.mark.parametrize("how", ["--redirects", "--tee"])
def test_c10_bytes_of_any_kind_are_kept_as_they_are(start: Start, tmp_path: Path, how: str) -> None:
    logs = tmp_path / "logs"
    launch = start("--log-dir", str(logs), how, "1", MONITORED, "0:0/write-odd,exit=0")
    assert launch.wait() == 0, launch.stderr_text()
    (file,) = logs.rglob("stdout.log")
    assert file.read_bytes() == b"".join(ODD_BYTES)
    if how == "--tee":
        assert b"\xff\xfe not UTF-8" in launch.output.read_bytes()
        assert len(launch.output.read_bytes()) >= sum(map(len, ODD_BYTES))
