"""The product's own client in a real worker process, through the real socket."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.core.facts import Progress
from supervisor.core.node import node_messages
from supervisor.edges.workers.stacks.stack_text import from_faulthandler
from tests.edges.workers.worker_side import JOB_ID, TOKEN, Served, serve, until
from worker_client.rank_monitor_client import WARM_UP_STEPS_MAX

SCRIPT = """
import sys, time
from worker_client import RankMonitorClient, WorkloadAction, WorkloadControlRequest
client = RankMonitorClient()
client.init_workload_monitoring(*map(int, sys.argv[2:]))
client.send_heartbeat()
client.send_heartbeat()
client.start_section("step")
def hold():
    sum(range(10**12))
def wait():
    sys.stdin.readline()
match sys.argv[1]:
    case "hold":
        print(flush=True)
        hold()
    case "control":
        request = WorkloadControlRequest(action=WorkloadAction.ShutdownWorkload, description="enough")
        client.send_workload_control_request(request)
print(flush=True)
wait()
client.end_section("step")
client.shutdown_workload_monitoring()
wait()
"""
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path):
    started: list[subprocess.Popen[bytes]] = []

    def one(served: Served, *arguments: str) -> subprocess.Popen[bytes]:
        token = tmp_path / "token"
        token.write_bytes(TOKEN)
        token.chmod(0o600)
        environment = {
            **os.environ,
            "HOLDFAST_SOCKET": str(served.path),
            "FT_RANK_MONITOR_IPC_SOCKET": str(served.path),
            "FT_LAUNCHER_IPC_SOCKET": str(served.path),
            "HOLDFAST_JOB_ID": JOB_ID,
            "HOLDFAST_TOKEN_FILE": str(token),
            "HOLDFAST_CYCLE": "0",
            "RANK": "0",
            "LOCAL_RANK": "0",
        }
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(process)
        served.server.expect(JOB_ID, 0, 0, process.pid)
        return process

    yield one
    for process in started:
        process.kill()
        process.communicate()


async def test_heartbeats_and_sections_are_seen_in_the_page(tmp_path: Path, start: Start):
    async with serve(tmp_path, expect=False) as served:
        process = start(served, "run")
        await until(lambda: served.of(node_messages.ClientJoined), at_most_s=60)
        await until(lambda: _read(served).open_sections)
        assert _read(served).heartbeats == 2
        assert [name for name, _ in _read(served).open_sections] == ["step"]
        text = await served.server.ask_stacks(JOB_ID, 0, 0, timeout_s=20)
        assert text is not None
        stack = from_faulthandler(text)
        assert stack is not None
        assert [frame.name for frame in stack] == ["<module>", "wait"]
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        await until(lambda: served.of(node_messages.ClientLeft))
        assert process.poll() is None
        assert served.server.counters.malformed == 0


async def test_a_client_whose_interpreter_is_held_still_shows_its_stack(tmp_path: Path, start: Start):
    async with serve(tmp_path, expect=False) as served:
        start(served, "hold")
        await until(lambda: served.of(node_messages.ClientJoined), at_most_s=60)
        await until(lambda: _read(served).open_sections)
        text = await served.server.ask_stacks(JOB_ID, 0, 0, timeout_s=4)
        assert text is not None
        stack = from_faulthandler(text)
        assert stack is not None
        assert [frame.name for frame in stack] == ["<module>", "hold"]


async def test_a_request_is_posted_and_accepted(tmp_path: Path, start: Start):
    async with serve(tmp_path, expect=False) as served:
        process = start(served, "control")
        await until(lambda: served.of(node_messages.ControlRequested), at_most_s=60)
        (asked,) = served.of(node_messages.ControlRequested)
        assert (asked.action, asked.description) == ("shutdown_workload", "enough")
        process.kill()
        await until(lambda: served.of(node_messages.ClientLeft))


@pytest.mark.parametrize("steps", [2**31, 2**32, sys.maxsize])
async def test_any_number_of_warm_up_steps_is_welcomed(tmp_path: Path, start: Start, steps: int):
    async with serve(tmp_path, expect=False) as served:
        start(served, "run", str(steps))
        await until(lambda: served.of(node_messages.ClientJoined), at_most_s=60)
        (joined,) = served.of(node_messages.ClientJoined)
        assert joined.limits.warm_up_steps == WARM_UP_STEPS_MAX


def _read(served: Served) -> Progress:
    progress = served.server.read_progress(JOB_ID, 0, 0)
    assert progress is not None
    return progress
