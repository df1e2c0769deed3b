"""Is a supervisor of this node asked to lead, and does torchrun continue without one?"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from anyio import to_thread

from supervisor.edges.machine.folders import socket_dir
from supervisor.edges.machine.journal.journal import Journal
from supervisor.ports.job_requests import RendezvousRequest
from supervisor.programs.torchrun import node_daemon
from tests.edges.operators.fake_job_service import FakeJobService, serving
from tests.edges.operators.test_event_streams import unexpected

REQUEST = RendezvousRequest("torch", "127.0.0.1", 29400)


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SOCKET_DIR", str(tmp_path))


async def test_a_supervisor_is_asked_and_its_word_counts(tmp_path: Path):
    journal = Journal(tmp_path, on_alarm=unexpected)
    job_service = FakeJobService()
    async with serving(job_service, tmp_path / "control.sock", journal):
        assert await node_daemon.leads(REQUEST)
        assert not await node_daemon.leads(RendezvousRequest("other", "127.0.0.1", 29400))
        assert not await node_daemon.leads(RendezvousRequest("torch", "127.0.0.1", 0)), "a refusal"
    assert [call[0] for call in job_service.calls] == ["lead", "lead"]


async def test_without_one_torchrun_leads_itself(tmp_path: Path):
    assert not await node_daemon.leads(REQUEST)
    (tmp_path / "control.sock").touch()
    assert not await node_daemon.leads(REQUEST)


async def test_one_that_is_no_supervisor_is_passed_by(tmp_path: Path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "control.sock"))
        listener.listen()

        def hang_up() -> None:
            for _ in range(2):  # the check whether anybody is there, and the call
                listener.accept()[0].close()
            listener.close()

        import threading

        thread = threading.Thread(target=hang_up)
        thread.start()
        assert not await to_thread.run_sync(lambda: node_daemon._ask(REQUEST))  # pyright: ignore[reportPrivateUsage]
        thread.join()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes folders for somebody else")
async def test_one_of_another_user_is_not_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    job_service = FakeJobService()
    async with serving(job_service, tmp_path / "control.sock", Journal(tmp_path, on_alarm=unexpected)):
        os.chown(tmp_path, 47114, 47114)
        assert not await node_daemon.leads(REQUEST)
    assert job_service.calls == []
    assert "belongs to user id 47114, not root" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes folders for somebody else")
async def test_after_one_of_another_user_the_next_one_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As under `sudo -E`, whose XDG_RUNTIME_DIR is the user's."""
    users, roots = tmp_path / "users", tmp_path / "roots"
    for folder in (users, roots):
        folder.mkdir(mode=0o700)
    os.chown(users, 47114, 47114)
    both = tuple(socket_dir.Candidate(folder, explicit=False) for folder in (users, roots))
    monkeypatch.setattr(socket_dir, "candidates", lambda: both)
    theirs, ours = FakeJobService(), FakeJobService()
    journal = Journal(tmp_path, on_alarm=unexpected)
    async with serving(theirs, users / "control.sock", journal), serving(ours, roots / "control.sock", journal):
        assert await node_daemon.leads(REQUEST)
    assert (len(theirs.calls), len(ours.calls)) == (0, 1)


def test_workers_inherit_what_the_user_has_set(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(__import__("sys").modules, "grpc", raising=False)
    for value in (None, "1"):
        if value is None:
            monkeypatch.delenv("GRPC_ENABLE_FORK_SUPPORT", raising=False)
        else:
            monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", value)
        with node_daemon._without_fork_support():  # pyright: ignore[reportPrivateUsage]
            assert os.environ["GRPC_ENABLE_FORK_SUPPORT"] == "0"
        assert os.environ.get("GRPC_ENABLE_FORK_SUPPORT") == value
