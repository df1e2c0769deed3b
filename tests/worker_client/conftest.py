"""A rank's environment, a supervisor that serves it by page or frames, and clients that are closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.worker_client.fake_supervisor import TOKEN, FakeSupervisor
from worker_client.rank_monitor_client import RankMonitorClient


@pytest.fixture
def rank_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sets the variables that a supervisor gives to rank 3; returns the socket's path, which nobody serves yet."""
    token = tmp_path / "token"
    token.write_bytes(TOKEN)
    token.chmod(0o600)
    path = tmp_path / "worker.sock"
    values = {
        "HOLDFAST_SOCKET": str(path),
        "HOLDFAST_JOB_ID": "job-7",
        "HOLDFAST_TOKEN_FILE": str(token),
        "HOLDFAST_CYCLE": "2",
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "1",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return path


@pytest.fixture(params=["page", "frames"])
def supervisor(request: pytest.FixtureRequest, rank_environment: Path) -> Iterator[FakeSupervisor]:
    """One that shares a page, and one that does not: the same tests for both."""
    served = FakeSupervisor(rank_environment, shares_page=request.param == "page")
    yield served
    served.stop()


@pytest.fixture
def page_supervisor(rank_environment: Path) -> Iterator[FakeSupervisor]:
    served = FakeSupervisor(rank_environment)
    yield served
    served.stop()


@pytest.fixture
def frames_supervisor(rank_environment: Path) -> Iterator[FakeSupervisor]:
    served = FakeSupervisor(rank_environment, shares_page=False)
    yield served
    served.stop()


@pytest.fixture
def new_client() -> Iterator[Callable[[], RankMonitorClient]]:
    made: list[RankMonitorClient] = []

    def make() -> RankMonitorClient:
        made.append(RankMonitorClient())
        return made[-1]

    yield make
    for client in made:
        client.shutdown_workload_monitoring()
