"""A `holdfast run` that gave its job to the node's supervisor shows its user the same as a private one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.e2e.test_one_group import Daemon

SCRIPT = """
import os, sys, time
if os.environ["RANK"] == "1":
    sys.exit("no such data set")
time.sleep(60)
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Generator[Daemon]:
    running = Daemon(tmp_path)
    yield running
    running.process.terminate()
    running.process.wait(30)


def run(daemon: Daemon, *arguments: str, stdin: int = subprocess.DEVNULL) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "supervisor", "run", "--socket-dir", str(daemon.sockets), "--job-id", "train",
         *arguments],
        cwd=daemon.root, env=daemon.env, stdin=stdin, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip


def test_restarts_the_failure_and_the_next_command_are_told(daemon: Daemon) -> None:
    (daemon.root / "train.py").write_text(SCRIPT)
    hook = f'echo "$HOLDFAST_EVENT_KIND" >> {daemon.root}/heard'
    done = run(daemon, "--nproc-per-node", "2", "--max-restarts", "1", "--on-event", hook, "train.py")
    assert done.returncode == 1
    told = [line for line in done.stderr.splitlines() if line.startswith("holdfast: ")]
    assert any(line.startswith("holdfast: running again after ") for line in told), done.stderr
    assert sum("restarting at once, restarts used 1 of 1" in line for line in told) == 1
    end = told.index("holdfast: job train failed with exit code 1")
    assert told[end + 1 : end + 3] == ["holdfast: last lines of rank 1 in cycle 1:", "holdfast:   no such data set"]
    assert told[-1] == "holdfast: next: holdfast events train, or holdfast logs train --rank 1"
    heard = (daemon.root / "heard").read_text().split()
    assert {"worker_failed", "restart_decided", "running_again", "job_failed"} <= set(heard)


def test_a_job_of_a_folder_that_was_removed_does_not_run_in_the_daemons(daemon: Daemon) -> None:
    (daemon.root / "train.py").write_text(f"open({str(daemon.root / 'ran')!r}, 'w')")
    script = f"{daemon.root}/train.py"
    for what, command in (("touch", ("--no-python", "touch", f"{daemon.root}/ran")), (script, (script,))):
        words = [sys.executable, "-m", "supervisor", "run", "--socket-dir", str(daemon.sockets), *command]
        done = subprocess.run(
            ["sh", "-c", 'mkdir gone && cd gone && rmdir ../gone && exec "$@"', "sh", *words],
            cwd=daemon.root, env=daemon.env, capture_output=True, text=True, timeout=90, check=False,
        )  # fmt: skip
        told = f"holdfast: cannot run {what}: the current folder was removed; go to one that exists\n"
        assert (done.returncode, done.stderr) == (2, told)
    assert not (daemon.root / "ran").exists()


def test_a_cordoned_node_is_told_as_such(daemon: Daemon) -> None:
    (node,) = {line.split()[0] for line in daemon.holdfast("nodes").stdout.splitlines()[1:]}
    assert daemon.holdfast("cordon", node, "--reason", "disk").returncode == 0
    done = run(daemon, "nowhere.py")
    assert done.returncode == 75
    assert f"cannot start job train: node {node} is cordoned (disk); try again once it takes jobs" in done.stderr


@pytest.mark.parametrize(("given", "warnings"), [("a line\n", 1), ("", 0)])
def test_a_stdin_that_no_rank_reads_is_told(daemon: Daemon, given: str, warnings: int) -> None:
    (daemon.root / "train.py").write_text("import sys; print([*sys.stdin])")
    (daemon.root / "given").write_text(given)
    with (daemon.root / "given").open() as file:
        done = run(daemon, "train.py", stdin=file.fileno())
    assert (done.returncode, done.stdout) == (0, "[]\n")
    told = "holdfast: warning: stdin does not reach the ranks that the node's supervisor starts; "
    assert done.stderr.count(told) == warnings, done.stderr
