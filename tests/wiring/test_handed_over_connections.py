"""When does a user's supervisor ask whether it may end, and how does it handle root's orders?"""

from __future__ import annotations

import socket
from functools import partial
from pathlib import Path
from typing import cast

import anyio
import pytest

from supervisor.edges.operators.control_gate import ControlGate
from supervisor.edges.users import user_link_messages as messages
from supervisor.edges.users.user_folders import UserFolder
from supervisor.edges.users.user_link import UserLink
from supervisor.engine.recovery.expected_jobs import ExpectedJobs
from supervisor.queries.job_service import JobService
from supervisor.wiring.handed_over_connections import serve_handed_over_connections


class Gate:
    def __init__(self) -> None:
        self.connections = 0
        self.clients: list[socket.socket] = []

    def admit(self, client: socket.socket) -> None:
        self.clients.append(client)
        self.connections += 1


class Counter:
    """Replaces the job service."""

    def __init__(self) -> None:
        self.expected = ExpectedJobs("node-a")
        self.live: list[str] = []
        self.cordons: list[str] = []

    def live_jobs(self) -> list[str]:
        return self.live

    def cordon(self, reason: str) -> None:
        self.cordons.append(reason)

    def uncordon(self) -> None:
        self.cordons.append("")

    async def next_cordon(self) -> str:
        await anyio.sleep_forever()
        raise AssertionError


async def _let_go(tmp_path: Path, gate: Gate, counter: Counter, after_s: float) -> bool:
    """Returns whether root has released it by then."""
    folder = UserFolder(tmp_path, tmp_path)
    handover_fd = folder.listen().detach()
    link = UserLink(folder)
    ended = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.hear)
        serve = partial(
            serve_handed_over_connections, handover_fd, gate=cast("ControlGate", gate), job_service=cast("JobService",
            counter),
            end=ended.set, make_room=ended.set, stays=False, idle_s=0.05,
        )  # fmt: skip
        tasks.start_soon(serve)
        await link.tell(messages.Cordon("new cable"))
        with anyio.move_on_after(after_s):
            await ended.wait()
        tasks.cancel_scope.cancel()
    assert counter.cordons == ["new cable"]
    return ended.is_set()


async def test_without_jobs_and_clients_it_is_let_go(tmp_path: Path) -> None:
    assert await _let_go(tmp_path, Gate(), Counter(), 20)


@pytest.mark.parametrize("kept_by", ["job", "expected job", "client"])
async def test_with_a_job_or_a_client_it_stays(tmp_path: Path, kept_by: str) -> None:
    gate, counter = Gate(), Counter()
    if kept_by == "job":
        counter.live = ["train"]
    elif kept_by == "expected job":
        counter.expected.expect(["train"])  # its spawner does not answer, and its ranks run on
    else:
        gate.connections = 1
    assert not await _let_go(tmp_path, gate, counter, 0.5)
