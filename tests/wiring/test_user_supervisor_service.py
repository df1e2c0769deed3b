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
from supervisor.wiring.user_supervisor_service import serve_user_supervisor
from tests.settling import settled


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
        self.asked, self.asked_cordon = anyio.Event(), ""  # by operators

    def live_jobs(self) -> list[str]:
        return self.live

    def cordon(self, reason: str) -> None:
        self.cordons.append(reason)

    def uncordon(self) -> None:
        self.cordons.append("")

    async def next_cordon(self) -> str:
        await self.asked.wait()
        self.asked = anyio.Event()
        return self.asked_cordon


async def _let_go(tmp_path: Path, gate: Gate, counter: Counter, after_s: float) -> bool:
    """Returns whether root has released it by then."""
    folder = UserFolder(tmp_path, tmp_path)
    handover_fd = folder.listen().detach()
    link = UserLink(folder)
    ended = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.hear)
        serve = partial(
            serve_user_supervisor, handover_fd, gate=cast("ControlGate", gate), job_service=cast("JobService",
            counter),
            end=ended.set, make_room=ended.set, stays=False, cordons_node=False, idle_s=0.05,
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


@pytest.mark.parametrize("cordons_node", [True, False])
async def test_what_operators_asked_of_roots_own_while_roots_process_was_away_is_newer_than_what_that_has_kept(
    tmp_path: Path, cordons_node: bool
) -> None:
    folder, gate, counter, told = UserFolder(tmp_path, tmp_path), Gate(), Counter(), list[str]()
    ours, theirs = socket.socketpair()
    serve = partial(
        serve_user_supervisor, folder.listen().detach(), gate=cast("ControlGate", gate),
        job_service=cast("JobService", counter), end=pytest.fail, make_room=pytest.fail, stays=True,
        cordons_node=cordons_node,
    )  # fmt: skip
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            counter.asked_cordon = ""  # an uncordon
            counter.asked.set()
            await settled()
            link = UserLink(folder, on_cordon=told.append)
            tasks.start_soon(link.hear)
            await link.tell(messages.Cordon("new cable"))
            assert await link.give(theirs)
            tasks.cancel_scope.cancel()
    for client in (ours, theirs, *gate.clients):
        client.close()
    assert (told, counter.cordons) == (([""], []) if cordons_node else ([], ["new cable"]))
