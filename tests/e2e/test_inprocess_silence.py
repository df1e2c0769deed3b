"""A silent rank under the Wrapper is restarted or ended in time; a rank that waits for others is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.launch import SCRIPTS, Launch, assert_nothing_left, launched

SOFT_TIMEOUT_S, HARD_TIMEOUT_S, GRACE_S = 2.0, 3.0, 0.5  # of scripts/wrapped_silence.py
BUSY_S = 4.0  # what a busy machine may add
RANKS = 3


def run(launch: Launch) -> None:
    assert launch.wait() == 0, launch.explained()
    assert_nothing_left(launch)


def case(folder: Path, name: str) -> Launch:
    """Returns the ended launch with all its output. Nobody is replaced."""
    with launched(folder, "--nproc-per-node", str(RANKS), str(SCRIPTS / "wrapped_silence.py"), name) as launch:
        run(launch)
        return launch


def entered(launch: Launch, iteration: int) -> dict[object, dict[str, object]]:
    return {line["rank"]: line for line in launch.traced("fn") if line["iteration"] == iteration}


def after_s(launch: Launch) -> float:
    """Returns the time from the fault to the entry of the last rank."""
    (fault,) = launch.traced("fault")
    return max(float(str(line["at"])) for line in entered(launch, 1).values()) - float(str(fault["at"]))


def interruptions(launch: Launch, rank: int) -> list[object]:
    return [line["message"] for line in launch.traced("interrupted") if line["rank"] == rank]


def pids(launch: Launch) -> set[object]:
    return {line["pid"] for line in launch.traced("fn")}


@pytest.mark.parametrize(
    ("name", "at_least_s"),
    [
        ("swallow", HARD_TIMEOUT_S),
        ("block", HARD_TIMEOUT_S),
        ("deaf", HARD_TIMEOUT_S + GRACE_S),
        ("stopped", HARD_TIMEOUT_S),
    ],
)
def test_who_can_not_be_interrupted_is_ended_at_its_hard_timeout(tmp_path: Path, name: str, at_least_s: float):
    """One swallows exceptions, one keeps a block in a thread, one ignores SIGTERM and holds the GIL, one is stopped."""
    launch = case(tmp_path, name)
    assert at_least_s - 0.1 < after_s(launch) < at_least_s + GRACE_S + BUSY_S
    assert set(entered(launch, 1)) == {0, 2}
    assert {line["world_size"] for line in entered(launch, 1).values()} == {"2"}
    if name == "swallow":
        assert launch.traced("swallowed")
    if name == "stopped":
        assert launch.traced("sigterm"), "its handler runs only if SIGCONT comes, too"


def test_the_first_ping_of_an_iteration_arms_its_limit(tmp_path: Path):
    launch = case(tmp_path, "ping")
    assert SOFT_TIMEOUT_S - 0.1 < after_s(launch) < SOFT_TIMEOUT_S + BUSY_S
    assert interruptions(launch, 0) == ["Interruption.SOFT_TIMEOUT affecting ranks {1}"]
    assert len(pids(launch)) == len(launch.traced("returned")) == RANKS


def test_no_limit_holds_without_hang_protection_until_the_next_iteration(tmp_path: Path):
    launch = case(tmp_path, "protected")
    assert interruptions(launch, 0) == [
        "Interruption.EXCEPTION affecting ranks {1}",
        "Interruption.SOFT_TIMEOUT affecting ranks {1}",
    ]
    assert len(pids(launch)) == len(launch.traced("returned")) == RANKS


def test_nobody_is_ended_while_it_waits_for_the_others(tmp_path: Path):
    """Longer than the hard timeout in the barrier of the iteration, then in that of the completion, after a ping."""
    launch = case(tmp_path, "long_recovery")
    assert len(launch.traced("finalized")) == 1
    assert {line["iteration"] for line in launch.traced("fn")} == {0, 1}
    assert len(pids(launch)) == len(launch.traced("returned")) == RANKS


def test_a_pending_gloo_collective_does_not_hold_up_a_restart_after_a_hang(tmp_path: Path):
    """Its own timeout is five minutes, and the rank that it waits for is alive."""
    options = ("--nproc-per-node", str(RANKS), str(SCRIPTS / "wrapped_gloo.py"), "sleep")
    with launched(tmp_path, *options) as launch:
        assert launch.wait(100) == 0, launch.explained()
        up = [float(str(line["at"])) for line in launch.traced("up") if line["iteration"] == 1]
        (asleep,) = [float(str(line["at"])) for line in launch.traced("fault") if line["iteration"] == 0]
        assert max(up) - asleep < 5.0 + 30.0  # the soft timeout there, and the time to form groups again
        assert len(launch.traced("returned")) == RANKS


def test_a_limit_that_no_rank_arms_does_not_concern_a_call(tmp_path: Path):
    """Wrapper and monitoring are independent: this script sends no heartbeat, for longer than the limit."""
    limits = ("--ft-rank-heartbeat-timeout", "1", "--ft-initial-rank-heartbeat-timeout", "1")
    with launched(tmp_path, "--nproc-per-node", "2", *limits, str(SCRIPTS / "wrapped_silence.py"), "unarmed") as launch:
        run(launch)
    assert len(launch.traced("returned")) == 2
    assert not launch.traced("interrupted")
    assert not {"call_before_limit", "hang_detected"} & set(launch.kinds())


@pytest.mark.parametrize(("name", "ended"), [("no_beat", False), ("no_beat_deaf", True)])
def test_a_limit_shorter_than_the_timeouts_restarts_inside_the_processes_first(tmp_path: Path, name: str, ended: bool):
    """A rank that holds the GIL is ended after the limit and the time between soft and hard timeout, not later."""
    limit_s = 1.0
    options = ("--nproc-per-node", str(RANKS), "--ft-rank-heartbeat-timeout", str(limit_s))
    with launched(tmp_path, *options, str(SCRIPTS / "wrapped_silence.py"), name) as launch:
        run(launch)
    assert launch.kinds().count("cycle_started") == 1
    assert launch.kinds().count("call_before_limit") == 1
    sentence = "the limit between heartbeats (1.0 s) runs out before hard_timeout (3.0 s) and termination_grace_time"
    assert sentence in launch.stderr_text()
    assert "rank 1 sent no heartbeat for 1.0 s (limit 1.0 s)" in launch.stderr_text()
    assert set(entered(launch, 1)) == ({0, 2} if ended else {0, 1, 2})
    at_least_s = limit_s + HARD_TIMEOUT_S - SOFT_TIMEOUT_S + GRACE_S if ended else limit_s - 0.2
    assert at_least_s - 0.1 < after_s(launch) < at_least_s + BUSY_S
