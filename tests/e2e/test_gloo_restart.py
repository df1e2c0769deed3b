"""The case in which torchrun fails: a rank of a gloo job exits, and the job must recover with default settings."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launch import SCRIPTS, Launch, assert_nothing_left, wait_until
from tests.e2e.test_worker_faults import reasons

if TYPE_CHECKING:
    from tests.e2e.conftest import Start

RECOVERING = str(SCRIPTS / "recovering.py")
JOBS = int(os.environ.get("HOLDFAST_TEST_GLOO_JOBS", "5"))  # 100 for the published figure

pytestmark = pytest.mark.timeout(180)


def totals(launch: Launch) -> list[str]:
    return sorted(launch.stdout_text().splitlines())


def expected(cycles: range, ranks: int) -> list[str]:
    total = ranks * (ranks + 1) // 2
    return sorted(f"cycle {cycle} rank {rank} total {total}" for cycle in cycles for rank in range(ranks))


def store_host(launch: Launch) -> int:
    """Returns its pid; it is started for the store's first client."""

    def named() -> list[int]:
        return [pid for pid in launch.leftovers() if comm(pid) == "hf-store\n"]

    wait_until(lambda: bool(named()), timeout_s=30, what="the store host")
    (host,) = named()
    return host


def comm(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text()
    return ""


def is_socket(file: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.readlink(file).startswith("socket:")
    return False


@pytest.mark.soak
@pytest.mark.timeout(60 * JOBS)
def test_a_rank_that_exits_with_7_costs_one_restart_every_time(start: "Start") -> None:
    for number in range(JOBS):
        launch = start("--nproc-per-node", "2", "--max-restarts", "1", RECOVERING, "0:1/exit")
        assert launch.wait() == 0, f"job {number}: {launch.stderr_text()}"
        assert totals(launch) == expected(range(2), 2)
        (failed,) = reasons(launch.events(), "worker_failed")
        assert failed.startswith("rank 1 ")
        assert failed.endswith("exit code 7")
        assert_nothing_left(launch)


def test_each_cycle_has_a_fresh_store_whatever_ended_the_one_before(start: "Start") -> None:
    """Rank 0 exits; a rank dies while the others wait for it in init_process_group; the store host is killed."""
    launch = start(
        "--nproc-per-node", "3", "--max-restarts", "3",
        RECOVERING, "0:0/exit", "1:2/kill before", "2:0/wait", "2:1/wait", "2:2/wait", "--own-stores",
    )  # fmt: skip
    launch.wait_for_output("cycle 2", count=3)
    os.kill(store_host(launch), signal.SIGKILL)
    assert launch.wait() == 0, launch.stderr_text()
    assert totals(launch) == sorted(expected(range(1), 3) + expected(range(2, 4), 3))
    events = launch.events()
    assert len(reasons(events, "restart_decided")) == 3
    (lost,) = reasons(events, "store_failed")
    assert "store of cycle 2" in lost
    assert_nothing_left(launch)


def test_without_an_agent_store_rank_0_hosts_it_and_the_job_comes_back(start: "Start") -> None:
    launch = start(
        "--nproc-per-node", "2", "--max-restarts", "2", "--no-agent-store", RECOVERING, "0:0/exit", "1:1/exit"
    )
    assert launch.wait() == 0, launch.stderr_text()
    assert totals(launch) == expected(range(3), 2)
    assert_nothing_left(launch)


def test_a_signal_during_init_process_group_ends_the_job(start: "Start") -> None:
    launch = start("--nproc-per-node", "2", "--max-restarts", "3", RECOVERING, "0:1/wait before")
    launch.wait_for_trace("joining", count=1)
    files = Path(f"/proc/{store_host(launch)}/fd")
    wait_until(lambda: sum(is_socket(file) for file in files.iterdir()) > 1, timeout_s=30, what="a client of the store")
    launch.process.send_signal(signal.SIGTERM)
    assert launch.wait(20) == 128 + signal.SIGTERM
    assert launch.kinds()[-1] == "job_stopped"
    assert launch.stdout_text() == ""
    assert_nothing_left(launch)
