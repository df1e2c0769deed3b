"""Hangs of real workers: found in time and never early, explained by stacks of all ranks, then ended."""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.hangs import (
    BUSY_S,
    BY_FRAMES,
    EARLY_S,
    MONITORED,
    at_unix_s,
    has_v1,
    overshoot_s,
    told,
    v1_cgroup,
    verdict,
)
from tests.e2e.launch import Launch, assert_nothing_left, wait_until

if TYPE_CHECKING:
    from tests.e2e.conftest import Start

LIMIT_S = 1.0
HANG = "hang_in_the_data_loader"
HANGS = 20

pytestmark = pytest.mark.timeout(120)


def assert_in_time(launch: Launch, *, limit_s: float = LIMIT_S, since: str = "beat") -> None:
    event = verdict(launch).event
    (begun,) = [line for line in launch.traced(since) if line["rank"] == event["rank"]]
    late_s = overshoot_s(event, begun, limit_s)
    assert -EARLY_S <= late_s <= BUSY_S, f"the verdict came {late_s:.3f} s after the limit"


@pytest.mark.parametrize("transport", ["page", "frames"])
@pytest.mark.parametrize("how", ["sleep", "gil", "spin", "stop"])
def test_a5_a6_a7_a_hang_is_found_explained_and_ended(start: Start, how: str, transport: str) -> None:
    # With frames, the beat must be sent before the GIL is held: hence the pause.
    launch = start(
        "--nproc-per-node", "3", "--max-restarts", "1", "--evidence-budget-s", "2",
        "--ft-rank-heartbeat-timeout", str(LIMIT_S), MONITORED, f"0:1/init,beat,sleep=0.2,hang={how}", "1:*/exit=0",
        environment=BY_FRAMES if transport == "frames" else {},
    )  # fmt: skip
    assert launch.wait() == 0, launch.stderr_text()
    (initialised,) = launch.traced("initialised")
    assert initialised["shared"] == (transport == "page")
    found = verdict(launch)
    assert re.fullmatch(r"rank 1 sent no heartbeat for [\d.]+ s \(limit 1.0 s\)", found.reason)
    assert_in_time(launch)
    # The unusual one comes first; all ranks are there.
    (odd, stack), *others = found.groups
    assert odd == "ranks 1"
    assert f"{HANG} (monitored.py:" in stack.splitlines()[-1]
    assert sorted(rank for ranks, _ in others for rank in ranks.removeprefix("ranks ").split(", ")) == ["0", "2"]
    reason = str(found.stacks["reason"])
    assert reason.startswith(f"rank 1 stands in {HANG} (monitored.py:")
    (explained,) = told(launch, "hang_explained")
    assert str(explained["reason"]) in launch.stderr_text()
    # Evidence comes before any signal.
    kinds = launch.kinds()
    first_end = min(kinds.index(kind) for kind in ("workers_stopping", "worker_exited"))
    assert kinds.index("hang_detected") < kinds.index("stacks_collected") < first_end
    (ended,) = [event for event in told(launch, "worker_exited") if event["rank"] == 1 and event["cycle"] == 0]
    assert str(ended["reason"]).endswith("was killed by SIGKILL")
    (decided,) = told(launch, "restart_decided")
    assert found.reason in str(decided["reason"])
    assert_nothing_left(launch)


@pytest.mark.alone
@pytest.mark.soak
def test_twenty_hangs_are_each_found_on_time_and_never_early(
    start: Start,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    limit_s = 0.3
    file = tmp_path / "iteration"
    file.write_text("0")
    launch = start(
        "--max-restarts", str(HANGS), "--evidence-budget-s", "0.05", "--ft-checkpoint-iteration-file", str(file),
        "--ft-rank-heartbeat-timeout", str(limit_s),
        MONITORED, f"{HANGS}:0/exit=0", "*:0/init,progress,beat,hang=sleep",
        environment={"ITERATION_FILE": str(file)},
    )  # fmt: skip
    assert launch.wait(100) == 0, launch.stderr_text()
    beats = {line["cycle"]: line for line in launch.traced("beat")}
    late_s = sorted(overshoot_s(event, beats[event["cycle"]], limit_s) for event in told(launch, "hang_detected"))
    assert len(late_s) == HANGS
    p50_ms, p99_ms = 1000 * statistics.median(late_s), 1000 * late_s[-1]
    record_property("hang_overshoot_ms", f"p50 {p50_ms:.2f}, p99 {p99_ms:.2f}")
    print(f"hang overshoot: p50 {p50_ms:.2f} ms, worst of {HANGS} {p99_ms:.2f} ms")
    assert late_s[0] >= -EARLY_S
    assert late_s[len(late_s) // 2] < 0.2
    assert late_s[-1] < BUSY_S


@pytest.mark.soak
@pytest.mark.skipif(not has_v1("freezer"), reason="needs a writable cgroup v1 freezer")
def test_a12_a_rank_that_can_not_be_killed_does_not_hold_up_the_job(start: Start) -> None:
    with v1_cgroup("freezer", f"holdfast-test-{os.getpid()}") as freezer:
        launch = start(
            "--nproc-per-node", "2", "--max-restarts", "1", "--ft-rank-heartbeat-timeout", "1",
            MONITORED, "0:1/init,beat,hang=sleep", "1:*/exit=0",
        )  # fmt: skip
        (hung,) = launch.wait_for_trace("hangs")
        pid = str(hung["pid"])
        (freezer / "cgroup.procs").write_text(pid)
        (freezer / "freezer.state").write_text("FROZEN")
        wait_until(lambda: (freezer / "freezer.state").read_text() == "FROZEN\n", timeout_s=5, what="the freeze")
        assert launch.wait(60) == 0, launch.stderr_text()
        assert_in_time(launch)
        assert HANG in str(verdict(launch).stacks["reason"])
        (stuck,) = told(launch, "workers_stuck")
        assert f"processes {pid} could not be killed (state D" in str(stuck["reason"])
    assert_nothing_left(launch)


def test_a_stopped_rank_wakes_up_to_a_gentle_signal(start: Start) -> None:
    launch = start(
        "--nproc-per-node", "2", "--ft-rank-termination-signal", "SIGTERM", "--ft-rank-heartbeat-timeout", "1",
        MONITORED, "0:1/init,beat,hang=stop",
    )  # fmt: skip
    assert launch.wait() == 1
    (ended,) = [event for event in told(launch, "worker_exited") if event["rank"] == 1]
    assert str(ended["reason"]).endswith("was killed by SIGTERM")
    assert_nothing_left(launch)


def test_a_gentle_signal_that_is_ignored_is_followed_by_sigkill(start: Start) -> None:
    launch = start(
        "--nproc-per-node", "2", "--ft-rank-termination-signal", "SIGTERM", "--ft-rank-heartbeat-timeout", "1",
        MONITORED, "0:1/ignore-term,init,beat,hang=sleep",
    )  # fmt: skip
    assert launch.wait() == 1
    (ended,) = [event for event in told(launch, "worker_exited") if event["rank"] == 1]
    assert str(ended["reason"]).endswith("was killed by SIGKILL")
    grace_s = at_unix_s(ended) - at_unix_s(verdict(launch).stacks)
    assert 1.9 <= grace_s <= 2 + 2 * BUSY_S
    assert_nothing_left(launch)


def python_without_py_spy(folder: Path, *, denied: bool) -> str:
    """Returns this environment's interpreter under another path, without py-spy, or with one that lacks rights."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    python = programs / "python"
    python.symlink_to(sys.executable)
    own = Path(sys.prefix)
    (folder / "pyvenv.cfg").write_text((own / "pyvenv.cfg").read_text())
    (folder / "lib").symlink_to(own / "lib")
    if denied:
        py_spy = programs / "py-spy"
        py_spy.write_text("#!/bin/sh\necho 'Error: Permission Denied: try again with sudo' >&2; exit 1\n")
        py_spy.chmod(0o755)
    return str(python)


@pytest.mark.parametrize("how", ["sleep", "gil"])
@pytest.mark.parametrize("denied", [True, False])
def test_without_py_spy_the_ranks_tell_their_stacks_themselves(
    start: Start, tmp_path: Path, how: str, denied: bool
) -> None:
    launch = start(
        "--nproc-per-node", "3", "--evidence-budget-s", "3", "--ft-rank-heartbeat-timeout", str(LIMIT_S),
        MONITORED, f"0:1/init,beat,hang={how}",
        environment={"PATH": "/usr/bin:/bin"},
        python=python_without_py_spy(tmp_path / "python", denied=denied),
    )  # fmt: skip
    assert launch.wait() == 1
    found = verdict(launch)
    (odd, stack), *others = found.groups
    assert odd == "ranks 1"
    assert f"{HANG} (monitored.py:" in stack.splitlines()[-1]
    assert len(others) >= 1
    assert found.details["source"] == "faulthandler"
    assert_nothing_left(launch)


def test_a_person_can_look_at_the_stacks_while_nothing_is_judged(start: Start) -> None:
    launch = start("--nproc-per-node", "3", MONITORED, "0:1/init,beat,hang=sleep")
    launch.wait_for_trace("hangs")
    wait_until(
        lambda: "ranks 0, 2" in launch.holdfast("stacks", launch.job_id, check=False).stdout,
        timeout_s=30, what="stacks of all ranks",
    )  # fmt: skip
    told_text = launch.holdfast("stacks", launch.job_id).stdout
    assert HANG in told_text
    assert told_text.index("rank 1") < told_text.index("ranks 0, 2")
    one = launch.holdfast("stacks", launch.job_id, "--rank", "1").stdout
    assert HANG in one
    assert "beat_for" not in one
    launch.process.send_signal(signal.SIGTERM)
    assert launch.wait() == 128 + signal.SIGTERM


def test_a_hang_of_several_ranks_is_one_fault(start: Start) -> None:
    launch = start(
        "--nproc-per-node", "4", "--max-restarts", "1", "--evidence-budget-s", "2", "--ft-rank-heartbeat-timeout", "1",
        MONITORED, "0:1/init,beat,hang=sleep", "0:3/init,beat,hang=sleep", "1:*/exit=0",
    )  # fmt: skip
    assert launch.wait() == 0, launch.stderr_text()
    assert len(told(launch, "restart_decided")) == 1
    assert {"1", "3"} >= {str(event["rank"]) for event in told(launch, "hang_detected")} != set()
    (stacks,) = told(launch, "stacks_collected")
    assert f"ranks 1, 3 stand in {HANG}" in str(stacks["reason"])
    assert json.dumps(stacks["details"]).count(HANG) == 1
    assert_nothing_left(launch)
