"""Is a job's own attribution service started, awaited, restarted and ended, whatever it does? Real processes."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from supervisor.config.attribution_settings import NO_MODEL, Attribution
from supervisor.edges.machine.clock import Clock
from supervisor.edges.services import managed_attribution
from supervisor.edges.services.attribution_client import AttributionClient
from supervisor.edges.services.managed_attribution import ManagedAttribution
from supervisor.errors import ConfigurationError


class Heard:
    """What a job learns of its service."""

    def __init__(self) -> None:
        self.clients: list[AttributionClient] = []
        self.reasons: list[str] = []
        self._changed = anyio.Event()

    def up(self, client: AttributionClient) -> None:
        self.clients.append(client)
        self._changed.set()

    def down(self, reason: str) -> None:
        self.reasons.append(reason)
        self._changed.set()

    async def comes(self, *, clients: int = 0, reasons: int = 0) -> None:
        with anyio.fail_after(60):
            while len(self.clients) < clients or len(self.reasons) < reasons:
                self._changed = anyio.Event()
                await self._changed.wait()


@asynccontextmanager
async def kept(managed: ManagedAttribution) -> AsyncGenerator[Heard]:
    heard = Heard()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(managed.run, heard.up, heard.down)
        yield heard
        tasks.cancel_scope.cancel()


def managed(folder: Path, *, startup_timeout_s: float = 60.0, code: str = "") -> ManagedAttribution:
    """`code`: of a program that replaces the service."""
    settings = Attribution("localhost", startup_timeout_s=startup_timeout_s, llm_model=NO_MODEL)
    environment = {"PATH": os.environ["PATH"]}
    command = {"command": (sys.executable, "-c", code)} if code else {}
    return ManagedAttribution(settings, f"{folder}/logs/train.log", environment, {}, Clock(), **command)


async def test_it_serves_the_folder_of_the_logs_is_started_again_and_ends_with_its_job(tmp_path: Path):
    service = managed(tmp_path)
    async with kept(service) as heard:
        await heard.comes(clients=1)
        first = service.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await heard.comes(clients=2, reasons=1)
        second = service.pid
        assert second not in (None, first)
        assert await heard.clients[1].is_healthy()
    assert heard.reasons == [
        f"the attribution service has ended with SIGKILL; its messages are in {tmp_path}/logs/train_attribution.log"
    ]
    with pytest.raises(ProcessLookupError):
        os.kill(second or 0, 0)
    assert f"for logs below {tmp_path}/logs" in (tmp_path / "logs/train_attribution.log").read_text()


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise SystemExit(3)", "has ended with exit code 3"),
        ("import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)", "has not come up within 1 s"),
    ],
)
async def test_one_that_does_not_come_up_is_ended_and_told(
    tmp_path: Path, code: str, why: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(managed_attribution, "END_TIMEOUT_S", 0.2)
    service = managed(tmp_path, startup_timeout_s=1.0 if "sleep" in code else 30.0, code=code)
    async with kept(service) as heard:
        await heard.comes(reasons=1)
    assert why in heard.reasons[0]
    assert service.pid is None


async def test_a_folder_that_can_not_be_made_is_told(tmp_path: Path):
    (tmp_path / "logs").write_text("a file")
    async with kept(managed(tmp_path)) as heard:
        await heard.comes(reasons=1)
    assert "cannot start the attribution service: File exists" in heard.reasons[0]


async def test_without_descriptors_it_is_told_and_started_once_there_are_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Whichever of its descriptors is the first that is missing: the supervisor ended with its job."""
    monkeypatch.setattr(managed_attribution, "AGAIN_S", 0.05)
    before, limits = len(os.listdir("/proc/self/fd")), resource.getrlimit(resource.RLIMIT_NOFILE)
    refused: set[str] = set()
    for room in range(10):
        async with kept(managed(tmp_path, code="raise SystemExit(3)")) as heard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1 + room, limits[1]))
            try:
                await heard.comes(reasons=1)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            refused.add(heard.reasons[0].partition(";")[0])
            await heard.comes(reasons=2)
        assert "has ended with exit code 3" in heard.reasons[1]
    assert refused == {
        "cannot start the attribution service: Too many open files",
        "the attribution service has ended with exit code 3",
    }
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_key_that_can_not_be_read_is_a_mistake_unless_no_model_is_asked(tmp_path: Path):
    await managed(tmp_path).check_key()
    settings = Attribution("localhost", llm_base_url="http://m", llm_api_key_file=str(tmp_path / "missing"))
    with pytest.raises(ConfigurationError, match="No such file"):
        await ManagedAttribution(settings, "/l/t.log", {}, {}, Clock()).check_key()
