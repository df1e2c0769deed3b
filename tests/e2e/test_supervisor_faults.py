"""Rows B of the fault matrix: what happens to real workers while their supervisor is stopped, killed or duplicated."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.hangs import BUSY_S, BY_FRAMES, EARLY_S, MONITORED, overshoot_s, told
from tests.e2e.launch import assert_nothing_left, wait_until

if TYPE_CHECKING:
    from tests.e2e.conftest import Start

pytestmark = pytest.mark.timeout(90)

STOPPED_S = 2.0
SLOW_CALL_S = 0.5  # on a busy machine a process may not run for this long; a call that waits takes STOPPED_S
RETURN_TIMEOUT_S = 3.0
TRANSPORTS = {"page": dict[str, str](), "frames": BY_FRAMES}


def slowest_call_s(lines: list[dict[str, object]]) -> float:
    return max(float(str(line["slowest_s"])) for line in lines)


def pause(duration_s: float) -> None:
    """Waits for the duration of the fault itself, not for an event."""
    time.sleep(duration_s)


# --- stopped, not dead ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_b3_a_stopped_supervisor_costs_training_nothing_and_condemns_nobody(start: Start, transport: str) -> None:
    launch = start(
        "--nproc-per-node", "2", "--ft-rank-heartbeat-timeout", "0.6", "--ft-rank-section-timeouts", "step:0.6",
        MONITORED, "0:0/init,beat-for=4,exit=0", "0:1/init,step-for=4,exit=0",
        environment=TRANSPORTS[transport],
    )  # fmt: skip
    launch.wait_for_trace("initialised", count=2)
    launch.process.send_signal(signal.SIGSTOP)
    pause(STOPPED_S)
    launch.process.send_signal(signal.SIGCONT)
    assert launch.wait() == 0, launch.stderr_text()
    assert "hang_detected" not in launch.kinds()
    assert slowest_call_s(launch.traced("beaten")) < SLOW_CALL_S


@pytest.mark.parametrize("transport", ["page", pytest.param("frames", marks=pytest.mark.soak)])
def test_b3_a_hang_while_the_supervisor_was_stopped_is_found_afterwards(start: Start, transport: str) -> None:
    launch = start(
        "--ft-rank-heartbeat-timeout", "1", MONITORED, "0:0/init,beat,mark,sleep=0.5,beat,hang=sleep",
        environment=TRANSPORTS[transport],
    )  # fmt: skip
    launch.wait_for_trace("mark")
    launch.process.send_signal(signal.SIGSTOP)
    pause(STOPPED_S)
    launch.process.send_signal(signal.SIGCONT)
    assert launch.wait() == 1
    (event,) = told(launch, "hang_detected")
    last = launch.traced("beat")[-1]
    assert -EARLY_S <= overshoot_s(event, last, 1.0) <= STOPPED_S + BUSY_S


@pytest.mark.parametrize(("limit_s", "rest_s"), [(3, 1), (6, 3)], ids=["beyond the limit", "within the limit"])
def test_b3_a_job_that_is_suspended_as_a_whole_goes_on_and_blames_no_rank(
    start: Start, limit_s: int, rest_s: int
) -> None:
    """A rank needs the rest of its step before it beats again, and no clock has stopped meanwhile."""
    rest = ",".join(["sleep=0.1"] * 10 * rest_s)
    launch = start(
        "--nproc-per-node", "2", "--ft-rank-heartbeat-timeout", str(limit_s),
        MONITORED, f"0:*/init,beat,mark,{rest},beat,exit=0",
    )  # fmt: skip
    launch.wait_for_trace("mark", count=2)
    pids = [launch.process.pid, *(set(launch.leftovers()) - {launch.process.pid})]
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in pids:
            os.kill(pid, number)
        if number == signal.SIGSTOP:
            pause(4.5)
    assert launch.wait() == 0, launch.stderr_text()
    assert "hang_detected" not in launch.kinds()


def test_init_without_a_supervisor_that_answers_ends_in_2_s_and_monitoring_starts_later(start: Start) -> None:
    launch = start(
        "--ft-rank-heartbeat-timeout", "1",
        MONITORED, "0:0/mark,await-file,init,beat-for=0.5,await-page,beat,hang=sleep",
    )  # fmt: skip
    launch.wait_for_trace("mark")
    launch.process.send_signal(signal.SIGSTOP)
    (launch.folder / "go").touch()
    (initialised,) = launch.wait_for_trace("initialised")
    (initialises,) = launch.traced("initialises")
    assert float(str(initialised["at"])) - float(str(initialises["at"])) < 2 + BUSY_S
    launch.wait_for_trace("beaten")
    launch.process.send_signal(signal.SIGCONT)
    assert launch.wait() == 1
    (event,) = told(launch, "hang_detected")
    assert -EARLY_S <= overshoot_s(event, launch.traced("beat")[-1], 1.0) <= BUSY_S
    assert slowest_call_s(launch.traced("beaten")) < SLOW_CALL_S


def test_a_script_without_any_supervisor_runs_as_it_is(tmp_path: Path) -> None:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST", "FT_"))},
        "RANK": "0", "TORCHELASTIC_RESTART_COUNT": "0", "TRACE": str(tmp_path / "trace"),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, MONITORED, "0:0/init,beat-for=0.2,open=step,close=step,control=ShutdownWorkload:x,shutdown"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert done.stderr.count("HOLDFAST_SOCKET is not set") == 1


def test_a_run_that_is_killed_is_known_until_its_ranks_have_ended(start: Start) -> None:
    """Nothing but the start was recorded: the spawner, which outlives it, records how the ranks end."""
    launch = start("--nproc-per-node", "1", MONITORED, "0:*/init,beat-for=3,beat-for=600")
    launch.wait_for_trace("beaten")
    launch.process.kill()
    launch.process.wait()
    wait_until(lambda: not launch.leftovers(), timeout_s=15, what="the end of all processes")
    life = json.loads(launch.holdfast("report", launch.job_id, "-o", "json").stdout)
    assert re.search(r"the job is known until \d{4}-\d\d-\d\dT[\d:]{8}[+-]\d\d:\d\d", life["reason"])
    known_s = (datetime.fromisoformat(life["until"]) - datetime.fromisoformat(life["began_at"])).total_seconds()
    assert known_s * life["running_share"] >= 3.0 - 1.1, "it is known to the second, and ran for three"


# --- a node's supervisor -------------------------------------------------------------------------------------------


@dataclass
class Daemon:
    process: subprocess.Popen[bytes]
    socket_dir: Path
    errors: Path

    @property
    def is_serving(self) -> bool:
        return (self.socket_dir / "control.sock").exists() and self.process.poll() is None


StartDaemon = Callable[[], Daemon]


@pytest.fixture
def start_daemon(tmp_path: Path) -> Generator[StartDaemon]:
    """Yields a function; each call starts another `holdfast daemon` in the same directory."""
    started: list[Daemon] = []

    def begin() -> Daemon:
        place = tmp_path / "daemon"
        place.mkdir(exist_ok=True)
        errors = place / f"errors{len(started)}"
        command = [
            sys.executable, "-m", "supervisor", "daemon", "--socket-dir", str(place / "run"),
            "--state-dir", str(place / "state"), "--supervisor-return-timeout", str(RETURN_TIMEOUT_S),
        ]  # fmt: skip
        with errors.open("wb") as stderr:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr)
        started.append(Daemon(process, place / "run", errors))
        return started[-1]

    yield begin
    for daemon in started:
        with contextlib.suppress(ProcessLookupError):
            daemon.process.send_signal(signal.SIGTERM)
        try:
            daemon.process.wait(20)
        except subprocess.TimeoutExpired:
            daemon.process.kill()
            daemon.process.wait()
            raise


def is_alive(pid: object) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_b1_workers_outlive_a_killed_supervisor_for_the_time_it_has_to_return(
    start: Start, start_daemon: StartDaemon
) -> None:
    """Nobody comes back, so the spawner then ends them, and nothing is left."""
    daemon = start_daemon()
    wait_until(lambda: daemon.is_serving, timeout_s=30, what="the daemon")
    launch = start(
        "--nproc-per-node", "2", "--ft-rank-heartbeat-timeout", "0.6", MONITORED, "0:*/init,beat-for=2,beat-for=600",
        environment={"HOLDFAST_SOCKET_DIR": str(daemon.socket_dir)},
    )  # fmt: skip
    launch.wait_for_trace("initialised", count=2)
    daemon.process.kill()
    daemon.process.wait()
    killed_at_s = time.monotonic()
    wait_until(
        lambda: len(launch.traced("beaten")) == 2, timeout_s=30, what="two seconds of beats"
    )  # they continue training, and none of their calls has waited
    assert slowest_call_s(launch.traced("beaten")) < SLOW_CALL_S
    workers = [line["pid"] for line in launch.traced("started")]
    wait_until(lambda: not any(map(is_alive, workers)), timeout_s=RETURN_TIMEOUT_S + 15, what="the end of the workers")
    assert time.monotonic() - killed_at_s >= RETURN_TIMEOUT_S - 0.2
    assert launch.wait() == 69, launch.stderr_text()
    assert "has gone, and none came back within " in launch.stderr_text()
    assert_nothing_left(launch, within_s=10)


def test_b9_a_second_daemon_on_the_same_directory_refuses_and_names_the_first(start_daemon: StartDaemon) -> None:
    first = start_daemon()
    wait_until(lambda: first.is_serving, timeout_s=30, what="the daemon")
    second = start_daemon()
    assert second.process.wait(30) == 75
    message = second.errors.read_text()
    assert f"{first.process.pid}" in message
    assert "Traceback" not in message
    assert first.is_serving


def test_a_job_under_the_nodes_supervisor_is_restarted_after_a_hang(start: Start, start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    wait_until(lambda: daemon.is_serving, timeout_s=30, what="the daemon")
    launch = start(
        "--nproc-per-node", "2", "--max-restarts", "1", "--ft-rank-heartbeat-timeout", "1",
        MONITORED, "0:1/init,beat,hang=gil", "1:*/exit=0",
        environment={"HOLDFAST_SOCKET_DIR": str(daemon.socket_dir)},
    )  # fmt: skip
    assert launch.wait() == 0, launch.stderr_text()
    (beat,) = launch.traced("beat")
    (event,) = told(launch, "hang_detected")
    assert -EARLY_S <= overshoot_s(event, beat, 1.0) <= BUSY_S
    assert_nothing_left(launch)
