"""Rows A1-A20 of the fault matrix without torch: real workers die; the job recovers or ends with the true reason."""

import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.core.stop_verdict import SAME_SIGNAL_S, SAME_SIGTERM_S
from tests.e2e.daemons import NodeDaemon
from tests.e2e.hangs import BUSY_S, EARLY_S, at_unix_s, told
from tests.e2e.launch import SCRIPTS, assert_nothing_left, wait_until

if TYPE_CHECKING:
    from tests.e2e.conftest import Start

FAULTY = str(SCRIPTS / "faulty.py")


def reasons(events: list[dict[str, object]], kind: str) -> list[str]:
    return [str(event["reason"]) for event in events if event["kind"] == kind]


@pytest.mark.parametrize("code", [1, 7, 255])
def test_a1_an_exit_code_is_told_exactly_and_the_job_restarts(start: "Start", code: int) -> None:
    launch = start("--nproc-per-node", "2", "--max-restarts", "1", FAULTY, f"0:1/exit={code}", "1:*/write=ok")
    assert launch.wait() == 0, launch.stderr_text()
    events = launch.events()
    (failed,) = reasons(events, "worker_failed")
    assert failed.startswith("rank 1 ")
    assert failed.endswith(f"exit code {code}")
    assert len(reasons(events, "restart_decided")) == 1
    assert launch.stdout_text() == "ok\nok\n"
    assert_nothing_left(launch)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS])
def test_a2_a_signal_is_told_as_a_signal(start: "Start", number: signal.Signals) -> None:
    launch = start("--nproc-per-node", "2", FAULTY, f"0:1/kill={int(number)}")
    assert launch.wait() == 1
    (failed,) = reasons(launch.events(), "worker_failed")
    assert f"was killed by {number.name}" in failed
    assert_nothing_left(launch)


def test_a3_a_rank_that_ends_early_is_an_event_and_no_fault(start: "Start") -> None:
    launch = start("--nproc-per-node", "2", FAULTY, "0:0/exit=0", "0:1/sleep=0.5")
    assert launch.wait() == 0
    assert "restart_decided" not in launch.kinds()


def test_a3_with_a_grace_it_is_a_fault(start: "Start") -> None:
    launch = start("--nproc-per-node", "2", "--completion-grace-s", "0.2", FAULTY, "0:0/exit=0")
    assert launch.wait() == 1
    assert_nothing_left(launch)


def test_a4_an_error_in_every_cycle_uses_the_budget_up_and_is_quoted(start: "Start") -> None:
    launch = start("--nproc-per-node", "2", "--max-restarts", "2", FAULTY, "*:*/raise=no such file")
    assert launch.wait() == 1
    (end,) = reasons(launch.events(), "job_failed")
    assert "restarts used 2 of 2" in end
    assert end.count("ValueError: no such file") == 1
    # If the other rank fails at once, a rank may be stopped before its first line.
    assert {line["cycle"] for line in launch.traced("started")} == {0, 1, 2}
    assert_nothing_left(launch)


def test_a13_escapees_and_grandchildren_die_with_their_cycle(start: "Start") -> None:
    launch = start("--nproc-per-node", "2", FAULTY, "0:1/escape,exit=5")
    launch.wait_for_trace("escaped")
    assert launch.wait() == 1
    assert_nothing_left(launch, within_s=2)


def test_a14_an_exit_is_known_though_a_grandchild_holds_the_pipe(start: "Start") -> None:
    launch = start("--nproc-per-node", "2", FAULTY, "0:1/hold-pipe=3")
    assert launch.wait(20) == 1
    assert any(text.endswith("exit code 3") for text in reasons(launch.events(), "worker_failed"))
    assert_nothing_left(launch)


def test_a17_all_ranks_die_at_once_and_it_costs_one_restart(start: "Start") -> None:
    launch = start("--nproc-per-node", "4", "--max-restarts", "1", FAULTY, "0:*/kill=9", "1:*/write=ok")
    assert launch.wait() == 0
    assert len(reasons(launch.events(), "restart_decided")) == 1


def test_a18_faults_in_each_cycle_and_during_restarts_are_all_seen(start: "Start") -> None:
    plan = [f"{cycle}:{cycle % 3}/kill=9" for cycle in range(6)]
    launch = start("--nproc-per-node", "3", "--max-restarts", "6", FAULTY, *plan, "6:*/write=ok")
    assert launch.wait() == 0, launch.stderr_text()
    assert len(reasons(launch.events(), "restart_decided")) == 6
    assert_nothing_left(launch)


def test_a19_a_command_that_is_not_there_is_told_at_once(start: "Start") -> None:
    launch = start("--nproc-per-node", "2", "--max-restarts", "3", "--no-python", "/nonexistent/program")
    assert launch.wait(10) == 2
    assert "restart_decided" not in launch.kinds()
    assert any("/nonexistent/program" in text for text in reasons(launch.events(), "job_failed"))


def test_a19_a_script_that_is_not_there_is_told_as_python_would(start: "Start") -> None:
    launch = start("--nproc-per-node", "2", "--max-restarts", "3", "no_such_script.py")
    assert launch.wait(10) == 2
    assert "cannot run no_such_script.py: there is no such file in" in launch.stderr_text()
    assert "restart_decided" not in launch.kinds()


def test_workers_that_ignore_sigterm_are_killed_after_the_stop_timeout(start: "Start") -> None:
    launch = start(
        "--nproc-per-node", "3", "--max-restarts", "1", "--workers-stop-timeout", "0.3",
        FAULTY, "0:0/ignore-term", "0:2/ignore-term", "0:1/sleep=0.5,exit=3", "1:*/write=ok",
    )  # fmt: skip
    launch.wait_for_trace("ignoring", count=2)
    assert launch.wait() == 0, launch.stderr_text()
    (failed,) = told(launch, "worker_failed")
    killed = [event for event in told(launch, "worker_exited") if event["cycle"] == 0]
    assert sorted(str(event["rank"]) for event in killed) == ["0", "2"]
    for event in killed:
        assert str(event["reason"]).endswith(" was killed by SIGKILL")
        assert 0.3 - EARLY_S <= at_unix_s(event) - at_unix_s(failed) <= 0.3 + BUSY_S
    assert_nothing_left(launch)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_b12_a_signal_to_the_launcher_reaches_the_ranks_and_names_the_exit_code(
    start: "Start", number: signal.Signals
) -> None:
    launch = start("--nproc-per-node", "2", "--max-restarts", "3", FAULTY)
    launch.wait_for_trace("started", count=2)
    launch.process.send_signal(number)
    assert launch.wait(10) == 128 + number
    kinds = launch.kinds()
    assert "restart_decided" not in kinds
    assert kinds[-1] == "job_stopped"
    exits = reasons(launch.events(), "worker_exited")
    assert len(exits) == 2
    assert all(text.endswith(f"was killed by {number.name}") for text in exits)
    assert_nothing_left(launch)


@pytest.mark.parametrize("max_restarts", [0, 3])
def test_b12_a_rank_that_is_ended_with_the_launcher_is_no_fault(start: "Start", max_restarts: int) -> None:
    """Slurm signals each process of a job, and often a rank before its launcher."""
    launch = start("--nproc-per-node", "2", "--max-restarts", str(max_restarts), FAULTY, "0:1/ignore-term")
    ranks = launch.wait_for_trace("started", count=2)
    launch.wait_for_trace("ignoring")
    (first,) = (line for line in ranks if line["rank"] == 0)
    os.kill(int(str(first["pid"])), signal.SIGTERM)
    launch.process.send_signal(signal.SIGTERM)  # within STOP_FOLLOWS_S; a rank's end is seen first in test_job_stops.py
    wait_until(lambda: "stop_requested" in launch.kinds(), timeout_s=10, what="the signal")
    asked_s = time.monotonic()
    wait_until(lambda: time.monotonic() > asked_s + SAME_SIGNAL_S, timeout_s=10, what="another signal")
    launch.process.send_signal(signal.SIGINT)
    assert launch.wait(10) == 128 + signal.SIGTERM
    assert "restart_decided" not in launch.kinds()
    assert "restarting" not in launch.stderr_text()


def test_b12_ranks_that_end_well_after_the_signal_make_a_success(start: "Start") -> None:
    launch = start("--nproc-per-node", "2", str(SCRIPTS / "polite.py"))
    launch.wait_for_trace("started", count=2)
    launch.process.send_signal(signal.SIGTERM)
    assert launch.wait(10) == 0
    assert len(launch.traced("saved")) == 2


TWICE = """
import os, signal, sys, time
cycle, numbers = os.environ["TORCHELASTIC_RESTART_COUNT"], (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
print(cycle, *(int(signal.getsignal(each) is signal.SIG_IGN) for each in numbers), flush=True)
if cycle == "0":
    sys.exit(1)
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
"""


def ignoring(folder: Path, *signals: str) -> str:
    """Returns an interpreter that is started with these signals ignored, as in a script's background or under nohup."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\ntrap '' {' '.join(signals)}\nexec {sys.executable} \"$@\"\n")
    python.chmod(0o755)
    return str(python)


def test_b12_a_job_in_the_background_of_a_script_is_interrupted(start: "Start", tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text(TWICE)
    launch = start(
        "--max-restarts", "1", str(tmp_path / "twice.py"), python=ignoring(tmp_path, "INT", "QUIT")
    )  # fmt: skip
    launch.wait_for_output("1 0 0 0\n", count=1)
    launch.process.send_signal(signal.SIGINT)
    assert launch.wait(10) == 128 + signal.SIGINT
    assert launch.stdout_text() == "0 0 0 0\n1 0 0 0\ninterrupted\n"
    assert_nothing_left(launch)


@pytest.mark.parametrize("under", ["", "daemon"])
def test_b12_a_hangup_changes_nothing_under_nohup(start: "Start", tmp_path: Path, under: str) -> None:
    (tmp_path / "twice.py").write_text(TWICE)
    with NodeDaemon(tmp_path / "node") if under else nullcontext() as daemon:
        where = ["--socket-dir", str(daemon.socket_dir)] if daemon is not None else []
        launch = start(
            *where, "--max-restarts", "1", str(tmp_path / "twice.py"), python=ignoring(tmp_path, "HUP")
        )  # fmt: skip
        launch.wait_for_output("1 0 0 ", count=1)
        launch.process.send_signal(signal.SIGHUP)
        launch.process.send_signal(signal.SIGTERM)
        assert launch.wait(10) == 128 + signal.SIGTERM
        assert "SIGHUP" not in launch.stderr_text()
        expected = "0 0 0 0\n1 0 0 0\n" if under else "0 0 0 1\n1 0 0 1\n"
        assert launch.stdout_text() == expected


def test_b12_how_a_daemon_was_started_does_not_change_its_jobs(start: "Start", tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text(TWICE)
    with NodeDaemon(tmp_path / "node", python=ignoring(tmp_path, "INT", "QUIT", "HUP")) as daemon:
        launch = start("--socket-dir", str(daemon.socket_dir), "--max-restarts", "1", str(tmp_path / "twice.py"))
        launch.wait_for_output("1 0 0 0\n", count=1)
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGHUP)
        daemon.process.send_signal(signal.SIGQUIT)
        launch.process.send_signal(signal.SIGQUIT)
        assert launch.wait(10) == 128 + signal.SIGQUIT
        assert launch.stdout_text() == "0 0 0 0\n1 0 0 0\n"
        assert daemon.process.poll() is None


def test_a_second_signal_ends_it_at_once(start: "Start") -> None:
    launch = start("--nproc-per-node", "2", FAULTY, "*:*/ignore-term")
    launch.wait_for_trace("ignoring", count=2)
    launch.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "stop_requested" in launch.kinds(), timeout_s=10, what="the first signal")
    asked_s = time.monotonic()
    wait_until(lambda: time.monotonic() > asked_s + SAME_SIGTERM_S, timeout_s=10, what="another signal")
    launch.process.send_signal(signal.SIGTERM)
    assert launch.wait(10) == 128 + signal.SIGTERM
    assert_nothing_left(launch)


def test_the_death_of_holdfast_run_leaves_nothing_behind_within_5_s(start: "Start") -> None:
    launch = start("--nproc-per-node", "2", FAULTY, "0:0/escape,ignore-term", "0:1/ignore-term")
    launch.wait_for_trace("ignoring", count=2)
    launch.wait_for_trace("escaped")
    launch.process.kill()
    launch.process.wait()
    assert_nothing_left(launch, within_s=5)


def test_b6_the_death_of_the_spawner_is_a_fault_and_the_job_comes_back(start: "Start") -> None:
    launch = start("--nproc-per-node", "2", "--max-restarts", "1", FAULTY, "0:0/escape,sleep", "1:*/write=ok")
    launch.wait_for_trace("escaped")
    (first, *_) = launch.traced("started")
    spawner_pid = parent_of(int(str(first["pid"])))
    os.kill(spawner_pid, signal.SIGKILL)
    assert launch.wait(30) == 0, launch.stderr_text()
    (lost,) = reasons(launch.events(), "spawner_lost")
    assert lost.endswith("; its workers end with it, and what they printed last may be lost")
    assert_nothing_left(launch)


def test_what_is_told_begins_on_a_new_line_after_a_ranks_half_line(tmp_path: Path) -> None:
    """Both go to one file here, as they go to one terminal."""
    script = tmp_path / "half.py"
    script.write_text("import os; os.write(2, b'half a line'); os._exit(3)")
    command = [sys.executable, "-m", "supervisor", "run", "--state-dir", str(tmp_path / "state"), str(script)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
    lines = done.stdout.splitlines()
    assert "holdfast: warning: rank 0" in lines[lines.index("half a line") + 1], done.stdout
    assert "" not in lines


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])
