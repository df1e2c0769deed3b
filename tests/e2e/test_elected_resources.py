"""A job that elects its leader by etcd, where processes and memory run out: row A15 for what the election needs."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.e2e.conftest import Start
from tests.e2e.launch import SCRIPTS, assert_nothing_left, wait_until
from tests.e2e.test_resources import (
    MONITORED,
    PROCESSES_MAX,
    asked,
    limited,
    needs_other_users,
    python_after,
    somebody,
)
from tests.etcd_server import Etcd, etcd

__all__ = ["somebody"]  # a fixture
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def server(tmp_path: Path) -> Generator[Etcd]:
    with etcd(tmp_path / "etcd") as started:
        started.ctl("endpoint", "health")
        yield started


def meeting(server: Etcd) -> tuple[str, ...]:
    return ("--nnodes", "1:2", "--rdzv-backend", "etcd", "--rdzv-endpoint", server.endpoint)


@needs_other_users
def test_a15_an_elected_leader_loses_etcd_and_a_worker_while_the_limit_of_processes_is_full(
    somebody: tuple[int, Path], server: Etcd
) -> None:
    """It finds etcd again without a thread."""
    uid, folder = somebody
    arguments = (*meeting(server), "--nproc-per-node", "2", "--max-restarts", "1", str(SCRIPTS / "filling.py"))
    with limited(folder, uid, f"--nproc={PROCESSES_MAX}", arguments=arguments) as launch:
        wait_until((folder / "full").exists, timeout_s=30, what="the limit")
        server.stop()
        server.start()
        server.end_lead(launch.job_id)
        leader = ("get", "--print-value-only", f"/holdfast/{launch.job_id}/leader")
        wait_until(lambda: bool(server.ctl(*leader).strip()), timeout_s=30, what="a leader")
        (folder / "go").touch()
        assert launch.wait() == 0, launch.stderr_text()
        assert_nothing_left(launch)
        assert '"worker_failed"' in asked(launch, uid, "events", launch.job_id, "-o", "jsonl").stdout


@needs_other_users
@pytest.mark.parametrize(
    ("processes", "codes"),
    [(3, (1, 75)), pytest.param(5, (0, 1, 75), marks=pytest.mark.soak), (11, (0,))],
)
def test_a15_few_processes_are_enough_for_an_elected_leader_and_fewer_end_with_a_sentence(
    somebody: tuple[int, Path], server: Etcd, processes: int, codes: tuple[int, ...]
) -> None:
    """gRPC's library aborted or crashed the supervisor under any of these limits."""
    uid, folder = somebody
    script = folder / "ends.py"
    script.touch()
    with limited(
        folder, uid, f"--nproc={processes}", arguments=(*meeting(server), "--nproc-per-node", "1", str(script))
    ) as launch:
        code = launch.wait()
        assert code in codes, (code, launch.stderr_text())
        assert code == 0 or "ulimit -u" in launch.stderr_text()
        assert "Traceback" not in launch.stderr_text()
        assert_nothing_left(launch)


def test_a15_a_supervisor_with_an_elected_leader_does_not_load_grpcs_library(
    start: Start, server: Etcd, tmp_path: Path
) -> None:
    """Neither at its start, nor for a command; and it needs little memory for addresses."""
    launch = start(
        *meeting(server), "--nproc-per-node", "2", "--max-restarts", "1",
        MONITORED, "0:1/mark,await-file,exit=3", "1:*/exit=0",
        python=python_after(tmp_path, "ulimit -v 400000"),
    )  # fmt: skip
    launch.wait_for_trace("mark")
    assert "running" in launch.holdfast("status", launch.job_id).stdout
    mapped = Path(f"/proc/{launch.process.pid}/maps").read_text()
    assert "uvloop" in mapped
    assert "grpc" not in mapped
    (launch.folder / "go").touch()
    assert launch.wait() == 0, launch.stderr_text()
    assert_nothing_left(launch)
