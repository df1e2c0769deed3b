"""Rows C11 to C13 of the fault matrix: the node's clock jumps, its CPUs are taken, its folders are wiped."""

from __future__ import annotations

import contextlib
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.edges.machine.folders import socket_dir
from tests.e2e.hangs import BUSY_S, BY_FRAMES, MONITORED, told
from tests.e2e.launch import Launch, wait_until

if TYPE_CHECKING:
    from tests.e2e.conftest import Start

pytestmark = pytest.mark.timeout(90)

CLOCK = Path(__file__).parent.parent / "fakes" / "jumping_clock.c"
HOUR_S = 3600
LIMIT_S = 1.2
STARVED_ROUNDS, AWAY_S, AWAKE_S = 6, 0.5, 0.02


def pause(duration_s: float) -> None:
    """Waits for the duration of the fault itself, not for an event."""
    time.sleep(duration_s)


def verdict_s(launch: Launch) -> float:
    """Returns how long after the last heartbeat the workers of the next cycle started, by the monotonic clock."""
    (*_, beat) = (line for line in launch.traced("beat") if line["cycle"] == 0)
    started = next(line for line in launch.traced("started") if line["cycle"] == 1)
    return float(str(started["at"])) - float(str(beat["at"]))


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_c11_a_clock_that_jumps_by_an_hour_condemns_nobody_and_hides_no_hang(start: Start, tmp_path: Path) -> None:
    library, offset = tmp_path / "clock.so", tmp_path / "offset"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, CLOCK, "-ldl"], check=True)
    offset.write_bytes(struct.pack("q", 0))

    def jump(to_s: int) -> None:
        with offset.open("r+b") as file:
            file.write(struct.pack("q", to_s))

    launch = start(
        "--max-restarts", "1", "--ft-rank-heartbeat-timeout", str(LIMIT_S),
        MONITORED, "0:0/init,beat-for=0.3,mark,beat-for=1.6,beat,hang=sleep", "1:0/init,beat,exit=0",
        environment={"LD_PRELOAD": str(library), "JUMPING_CLOCK": str(offset)},
    )  # fmt: skip
    launch.wait_for_trace("mark")
    jump(HOUR_S)
    launch.wait_for_trace("beaten", count=2)  # it has beaten for longer than its limit since the jump
    jump(-HOUR_S)
    launch.wait_for_trace("hangs")
    jump(HOUR_S)
    assert launch.wait() == 0, launch.stderr_text()
    jumped_s = float(str(launch.traced("beaten")[1]["at_unix"])) - float(str(launch.traced("started")[0]["at_unix"]))
    assert jumped_s > HOUR_S - 60, "the clock has not jumped"
    assert len(told(launch, "hang_detected")) == 1
    assert LIMIT_S <= verdict_s(launch) <= LIMIT_S + 2 * BUSY_S


def test_c12_a_supervisor_that_gets_little_cpu_time_condemns_nobody_and_finds_a_hang(start: Start) -> None:
    launch = start(
        "--max-restarts", "1", "--ft-rank-heartbeat-timeout", "0.6",
        MONITORED, "0:0/init,beat-for=0.3,mark,beat-for=2,beat,hang=sleep", "1:0/init,beat,exit=0",
        environment=BY_FRAMES,
    )  # fmt: skip
    launch.wait_for_trace("mark")
    for _ in range(STARVED_ROUNDS):
        launch.process.send_signal(signal.SIGSTOP)
        pause(AWAY_S)
        launch.process.send_signal(signal.SIGCONT)
        pause(AWAKE_S)
    assert launch.wait() == 0, launch.stderr_text()
    assert len(told(launch, "hang_detected")) == 1
    assert 0.6 <= verdict_s(launch) <= 0.6 + STARVED_ROUNDS * (AWAY_S + AWAKE_S)


def test_c13_folders_that_are_wiped_under_a_job_cost_it_nothing(start: Start) -> None:
    """As a cleaner of /tmp does it: sockets, tokens and lock are gone; the next cycle needs all to be watched."""
    launch = start(
        "--max-restarts", "2", "--ft-rank-heartbeat-timeout", "1",
        MONITORED, "0:0/init,mark,await-file,beat-for=1.5,await-socket,beat,hang=sleep",
        "1:0/init,beat-for=0.2,beat,hang=sleep", "2:0/exit=0",
    )  # fmt: skip
    (first,) = launch.wait_for_trace("started")
    folder = socket_dir.holder_of(Path(str(first["socket"])))
    launch.wait_for_trace("mark")
    before = Path(str(first["socket"])).lstat().st_ino
    shutil.rmtree(folder, ignore_errors=True)  # files may come back while it goes on
    (launch.folder / "go").touch()

    def is_back() -> bool:
        with contextlib.suppress(FileNotFoundError):
            return Path(str(first["socket"])).lstat().st_ino != before
        return False

    wait_until(is_back, timeout_s=10, what="the socket")
    assert launch.wait() == 0, launch.stderr_text()
    assert [line["cycle"] for line in launch.traced("beat")] == [0, 1], "the socket came back too late"
    assert [line["shared"] for line in launch.traced("initialised")] == [True, True]
    assert [hang["cycle"] for hang in told(launch, "hang_detected")] == [0, 1]
    (again,) = [line for line in launch.traced("beaten") if line["cycle"] == 1]
    assert float(str(again["slowest_s"])) < BUSY_S
