"""With which limits, and after whom, is a user's supervisor started again? Supervisors are tasks of this process."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path

import anyio
import msgspec
import pytest

from supervisor.edges.machine.processes.peer_identity import Identity, Limits
from supervisor.edges.users.user_folders import UserFolder
from supervisor.edges.users.user_process import StartedSupervisor
from tests.edges.users.fake_supervisors import ALICE, BOB, come, house

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes folders for somebody else")


async def test_the_next_supervisor_of_a_user_has_the_highest_limits_that_its_processes_have_shown(
    tmp_path: Path,
) -> None:
    async with house(tmp_path) as (users, fakes):
        for hard in (256, 4096, 1024):
            await come(users, ALICE, (("NOFILE", 256, hard),))
        assert resource.prlimit(fakes.records[0].pid, resource.RLIMIT_NOFILE)[1] >= 4096
        (record,) = (tmp_path / "run").rglob("record.json")
        assert UserFolder(record.parent, tmp_path).record() == msgspec.structs.replace(
            fakes.records[0], limits=(("NOFILE", 256, 4096),)
        )
        fakes.end(ALICE.uid)
        while len(fakes.records) < 2:
            await anyio.lowlevel.checkpoint()
        assert fakes.records[1].limits == (("NOFILE", 256, 4096),)
        await come(users, ALICE)  # it is there before the end, which closes what it has opened


async def test_the_client_that_meets_no_supervisor_does_not_lower_the_limits_of_the_next_one(tmp_path: Path) -> None:
    async with house(tmp_path) as (users, fakes):
        await come(users, ALICE, (("NOFILE", 256, 4096),))
        link = users._users[ALICE.name].link  # pyright: ignore[reportPrivateUsage]
        assert link is not None
        fakes.end(ALICE.uid)
        await link.ended.wait()
        await come(users, ALICE, (("NOFILE", 200, 300),))  # before the pause after a crash is over
        assert fakes.records[1].limits == (("NOFILE", 256, 4096),)
        (record,) = (tmp_path / "run").rglob("record.json")
        assert UserFolder(record.parent, tmp_path).record() == fakes.records[1]


async def test_restarts_of_supervisors_wait_for_nobody_of_the_same_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All come back at once after an upgrade, and a node of a job is lost that is away for some seconds."""
    async with house(tmp_path, login_of=lambda _: ALICE.uid) as (users, fakes):
        for identity in (ALICE, BOB):
            await come(users, identity)
        may_go, really_start = threading.Event(), fakes.start

        def start(identity: Identity, limits: Limits, folder: UserFolder) -> StartedSupervisor:
            if identity == ALICE:
                may_go.wait(20)
            return really_start(identity, limits, folder)

        monkeypatch.setattr(fakes, "start", start)
        for identity in (ALICE, BOB):
            fakes.end(identity.uid)
        while fakes.starts[2:] != [BOB]:
            await anyio.lowlevel.checkpoint()
        may_go.set()
        while fakes.starts[2:] != [BOB, ALICE]:
            await anyio.lowlevel.checkpoint()
        for identity in (ALICE, BOB):  # both are there before the end, which closes what they have opened
            await come(users, identity)
