"""What a supervisor opens is its own, and what it is told of a job stays; another one's folder it leaves alone."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from supervisor.config import JobSpec
from supervisor.core.facts import JobState
from supervisor.edges.machine.folders import socket_dir
from supervisor.edges.machine.folders.socket_claim import SocketDirClaim
from supervisor.edges.machine.folders.worker_tokens import WorkerTokens
from supervisor.edges.machine.journal.journal import Journal
from supervisor.edges.machine.processes.job_claims import JobClaims
from supervisor.engine.output_plan import Console
from supervisor.errors import InUseError
from supervisor.wiring.supervisor import open_supervisor
from supervisor.wiring.supervisor_paths import SupervisorPaths
from tests.engine.world import FakeSpawners
from tests.settling import settled


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yields a folder whose path leaves room for a socket's."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def test_one_that_finds_its_folder_served_takes_no_tokens_away(folder: Path, tmp_path: Path):
    claim = SocketDirClaim(folder)
    socket_dir.make_closed(folder / "worker")
    token, path = WorkerTokens(socket_dir.tokens_dir(folder)).issue("job", 0)

    async def serve() -> None:
        async with open_supervisor(SupervisorPaths(folder, tmp_path / "state", Console(present=False), private=False)):
            pytest.fail("two serve one folder")

    with pytest.raises(InUseError, match="serves it"):
        anyio.run(serve)
    assert path.read_bytes() == token
    claim.close()


async def test_a_job_that_has_ended_is_in_the_record_that_is_left(folder: Path, tmp_path: Path):
    spawners, state = FakeSpawners(), tmp_path / "state"
    paths = SupervisorPaths(folder, state, Console(present=False), private=True)
    async with open_supervisor(
        paths, claims=JobClaims(()), make_spawners=lambda _workers, _tokens: spawners
    ) as running:
        running.journal.start()
        await running.job_service.submit(JobSpec("j", ("t.py",)), {})
        await settled()
        spawners.started[-1].exit(0, 0, code=3)
        await running.job_service.wait("j")
        assert running.returning is None
        assert running.counter.node().state == "ready"
    journal = Journal(state, on_alarm=print)
    left = journal.job("j")
    assert left is not None
    assert (left.state, left.exit_code) == (JobState.FAILED, 1)
    assert "worker_failed" in [event.kind for event in journal.events("j", limit=100)]
    journal.close()
