"""The health service in its own process, asked by our own client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import pytest

from supervisor.config.healthd_file import HealthdSettings
from supervisor.core.node_check_facts import Health, HealthCheckPolicy
from supervisor.core.nvhcd_verdict import Answer, Reply, judge
from supervisor.edges.machine.health import healthd_service
from supervisor.edges.machine.health.nvhcd_client import NvhcdClient

SCRIPT = """#!/bin/sh
echo "asked with: $*" >&2
case "$(cat {folder}/state)" in
well) printf '{{"fail_count": 0}}' ;;
ill) printf '{{"fail_count": 2, "failed_checks": ["gpu", "nic"]}}'; exit 1 ;;
slow) sleep 60 & echo $! > {folder}/child; wait ;;
leaving) printf '{{"fail_count": 0}}'; sleep 60 & echo $! > {folder}/child ;;
loud) yes | head -c 3000000; yes >&2 | head -c 3000000 >&2 ;;
garbled)
    for stream in 1 2; do head -c 3000000 /dev/zero | tr '\\0' '\\377' >&$stream; done
    exit 1 ;;
killed) kill -9 $$ ;;
esac
"""


class Service:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "nvhcd.sock"
        script = folder / "check.sh"
        script.write_text(SCRIPT.format(folder=folder))
        script.chmod(0o755)
        config = folder / "nvhcd.yaml"
        config.write_text(f"socket_path: {self.socket}\nhealthcheck_path: {script}\ntimeout: 2\n")
        self.command = [sys.executable, "-m", "supervisor", "healthd", "-config", str(config)]
        self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        assert "serving" in self.process.stderr.readline()

    async def says(self, state: str) -> Answer:
        (self.folder / "state").write_text(state)
        return await NvhcdClient(str(self.socket)).ask()

    def has_ended_its_child(self) -> bool:
        child = int((self.folder / "child").read_text())
        until_s = time.monotonic() + 10
        while time.monotonic() < until_s:
            try:
                if Path(f"/proc/{child}/stat").read_text().split()[2] == "Z":
                    return True
            except OSError:
                return True
        return False


@pytest.fixture
def service(tmp_path: Path) -> Generator[Service]:
    service = Service(tmp_path)
    yield service
    if service.process.poll() is None:
        service.process.terminate()
    service.process.communicate(timeout=20)


async def test_a_script_decides_and_is_asked_with_our_arguments(service: Service) -> None:
    well = await service.says("well")
    assert well == Reply(success=True, output='{"fail_count": 0}', error="asked with: --no-slurm\n")
    ill = judge(await service.says("ill"), HealthCheckPolicy.DOCUMENTED)
    assert ill.health is Health.UNHEALTHY
    assert ill.reason == ("nvhcd says that the node is unhealthy (gpu, nic): asked with: --no-slurm, exit code 1")
    killed = await service.says("killed")
    assert isinstance(killed, Reply)
    assert (killed.success, killed.exit_code) == (False, 128 + signal.SIGKILL)


async def test_nothing_of_a_script_is_left_that_is_too_slow_or_leaves_somebody_behind(service: Service) -> None:
    slow = await service.says("slow")
    assert isinstance(slow, Reply)
    assert not slow.success
    assert "check.sh has not ended within 2 s" in slow.error
    assert service.has_ended_its_child()
    begun_s = time.monotonic()
    leaving = await service.says("leaving")
    assert isinstance(leaving, Reply)
    assert leaving.success
    assert time.monotonic() - begun_s < 2.0
    assert service.has_ended_its_child()


async def test_a_flood_of_output_is_cut_and_the_service_goes_on(service: Service) -> None:
    loud = await service.says("loud")
    assert judge(loud, HealthCheckPolicy.DOCUMENTED).health is Health.UNHEALTHY
    assert isinstance(await service.says("well"), Reply)


async def test_a_flood_of_bytes_that_are_no_text_hides_no_failure(service: Service) -> None:
    """As text, each such byte is three: our client would refuse the answer, and a tolerant job skip the check."""
    ill = await service.says("garbled")
    assert isinstance(ill, Reply)
    assert (ill.success, ill.exit_code) == (False, 1)
    assert set(ill.output) == set(ill.error.splitlines()[-1]) == {"\N{REPLACEMENT CHARACTER}"}
    assert judge(ill, HealthCheckPolicy.TOLERANT).health is Health.UNHEALTHY


class Stuck:
    """A program that SIGKILL does not end, as if it waited in the kernel for storage."""

    pid = 2**22 + 1  # more than Linux gives
    returncode = stdout = stderr = None

    def __init__(self) -> None:
        self.ended = anyio.Event()

    async def wait(self) -> None:
        await self.ended.wait()

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            await self.ended.wait()


async def test_a_program_that_not_even_sigkill_ends_is_a_failure_and_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, opened, open_process = Stuck(), list[object](), anyio.open_process

    async def opens(*command: Any, **more: Any) -> Any:  # noqa: ANN401
        opened.append(command)
        return stuck if len(opened) == 1 else await open_process(*command, **more)

    monkeypatch.setattr(anyio, "open_process", opens)
    settings = HealthdSettings("/bin/true", str(tmp_path / "nvhcd.sock"), timeout_s=0.5)
    client = NvhcdClient(settings.socket_path, deadline_s=10.0)
    async with healthd_service.serving(settings):
        try:
            why = "/bin/true has not ended within 0.5 s, nor after SIGKILL: it may wait for storage"
            assert await client.ask() == Reply(False, "", -1, why)
            assert await client.ask() == Reply(True, "")
            monkeypatch.setattr(healthd_service, "UNENDING_MAX", 1)
            why = "1 earlier programs have not ended after SIGKILL; check the node's storage"
            assert await client.ask() == Reply(False, "", -1, why)
        finally:
            stuck.ended.set()
        assert await client.ask() == Reply(True, "")


async def test_it_ends_at_sigterm_serves_one_and_takes_over_a_dead_ones_socket(service: Service) -> None:
    second = subprocess.run(service.command, capture_output=True, text=True, timeout=30)  # noqa: ASYNC221
    assert second.returncode == 75
    assert "another service listens there" in second.stderr
    service.process.kill()
    service.process.wait()
    assert service.socket.exists()
    third = subprocess.Popen(service.command, stderr=subprocess.PIPE, text=True)  # noqa: ASYNC220
    assert third.stderr is not None
    assert "serving" in third.stderr.readline()
    assert isinstance(await service.says("well"), Reply)
    assert os.stat(service.socket).st_mode & 0o777 == 0o666
    third.terminate()
    assert third.wait(20) == 0
    third.stderr.close()
    assert not service.socket.exists()


def test_a_file_in_the_place_of_the_socket_is_left_alone(tmp_path: Path) -> None:
    mine = tmp_path / "precious"
    mine.write_text("mine")
    config = tmp_path / "nvhcd.yaml"
    config.write_text(f"socket_path: {mine}\nhealthcheck_path: /bin/true\n")
    command = [sys.executable, "-m", "supervisor", "healthd", "--config", str(config)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 78
    assert f"cannot serve {mine}: it is not a socket; choose another socket_path" in ended.stderr
    assert mine.read_text() == "mine"


def test_a_program_that_is_not_there_is_told_at_the_start(tmp_path: Path) -> None:
    config = tmp_path / "nvhcd.yaml"
    config.write_text(f"socket_path: {tmp_path}/nvhcd.sock\nhealthcheck_path: {tmp_path}/none\n")
    command = [sys.executable, "-m", "supervisor", "healthd", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "serving" in process.stderr.readline()
        told = process.stderr.readline()
        process.terminate()
        assert process.wait(20) == 0
    assert f"cannot run {tmp_path}/none: it is not there, or may not be executed; " in told
