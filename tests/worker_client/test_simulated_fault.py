"""A simulated fault meets the rank that it was meant for, once, by the signal that its type says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from worker_client import simulated_fault

SCRIPT = """
import sys, time
from worker_client.simulated_fault import simulate
timer = simulate({"fault_type": sys.argv[1], "base_delay": 0.0, "rank_to_fail": 1})
print(timer is not None, flush=True)
if timer is not None:
    time.sleep(60)
"""


def started(kind: str, rank: int, cycle: int = 0) -> subprocess.Popen[str]:
    environ = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": str(cycle)}
    return subprocess.Popen([sys.executable, "-c", SCRIPT, kind], env=environ, stdout=subprocess.PIPE, text=True)


def test_a_rank_is_killed() -> None:
    with started("rank_killed", 1) as process:
        assert process.wait(30) == -signal.SIGKILL


def test_a_rank_is_stopped() -> None:
    with started("rank_hung", 1) as process:
        assert os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT) is not None
        process.kill()


@pytest.mark.parametrize(("rank", "cycle"), [(0, 0), (1, 1)])
def test_other_ranks_and_later_cycles_are_spared(rank: int, cycle: int) -> None:
    with started("rank_killed", rank, cycle) as process:
        assert process.communicate(timeout=30)[0] == "False\n"
        assert process.returncode == 0


def test_a_rank_that_the_wrapper_keeps_in_reserve_is_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "None")
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    assert simulated_fault.simulate({"fault_type": "rank_killed", "base_delay": 1000}) is None


def test_without_a_rank_all_ranks_choose_the_same_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job-1")
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    chosen: list[int] = []
    for rank in range(8):
        monkeypatch.setenv("RANK", str(rank))
        timer = simulated_fault.simulate(SimpleNamespace(fault_type="random", base_delay=1000, rand_delay=5))
        if timer is not None:
            timer.cancel()
            chosen.append(rank)
    assert len(chosen) == 1


@pytest.mark.parametrize(
    ("params", "why"),
    [
        (
            {"fault_type": "rank_kiled", "base_delay": 1},
            "its type is 'rank_kiled'; use rank_killed, rank_hung or random",
        ),
        ({"fault_type": "random"}, "base_delay is None; give a number of seconds"),
        ({"fault_type": "random", "base_delay": -1}, "base_delay is -1; give a number"),
        ({"fault_type": "random", "delay": 1}, "there is no parameter 'delay'; use fault_type, "),
    ],
)
def test_a_mistake_is_told(params: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        simulated_fault.simulate(params)
