"""How many supervisors, and folders, does one login get?"""

from __future__ import annotations

import os
import pwd
import threading
from pathlib import Path

import anyio
import pytest

from supervisor.edges.machine.processes.logins import Logins
from supervisor.edges.machine.processes.peer_identity import ROOT, Identity
from supervisor.edges.users import supervisor_processes, user_supervisor_limit
from supervisor.edges.users import user_link_messages as messages
from supervisor.edges.users.user_supervisors import UserSupervisors
from supervisor.errors import ExhaustedError
from tests.edges.users.fake_supervisors import ALICE, BOB, Fakes, come, house

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes folders for somebody else")


async def test_supervisors_of_one_login_are_bounded(tmp_path: Path) -> None:
    async with house(tmp_path, login_of=lambda uid: min(uid, 60_000)) as (users, fakes):
        for number in range(user_supervisor_limit.SUPERVISORS_OF_ONE_MAX):
            await come(users, Identity(60_000 + number, 60_000, ()))
        with pytest.raises(ExhaustedError, match="its login, with other groups and subordinate user ids, has 8 "):
            await come(users, Identity(70_000, 60_000, ()))
        with pytest.raises(ExhaustedError):
            await come(users, Identity(60_000, 60_000, (1,)))
        await come(users, BOB)
        await come(users, Identity(60_000, 60_000, ()))
        fakes.running[60_001].cancel()  # it is about to be started again: there is still no room
        with pytest.raises(ExhaustedError):
            await come(users, Identity(70_000, 60_000, ()))


async def test_folders_of_one_login_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay, so one at a time would fill the node with folders and mounts."""
    monkeypatch.setattr(supervisor_processes, "STARTS_AT_ONCE_MAX", 200)
    refused = 0
    subordinate = tmp_path / "subuid"
    subordinate.write_text("60000:100000:65536\n")
    logins = Logins(subordinate)
    async with house(tmp_path, login_of=logins.of, count_of_login=logins.count) as (users, fakes):
        for number in range(100):
            identity = Identity((60_000, 100_001)[number % 2], 60_000, (number,))
            try:
                await come(users, identity)
            except ExhaustedError:
                refused += 1
            else:
                await _leave(users, fakes, identity)
        assert (refused, len(os.listdir(tmp_path / "run" / "users"))) == (36, 64)
        with pytest.raises(ExhaustedError, match="has come with 64 different sets of groups or subordinate user ids"):
            await come(users, Identity(100_002, 60_000, ()))
        await come(users, Identity(60_000, 60_000, (0,)))
        await come(users, ALICE)
        await come(users, ROOT)


async def test_a_login_is_not_refused_for_the_folders_of_logins_whose_ids_lie_in_the_same_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart of the service, where none of them has been looked up yet."""
    background = threading.Event()

    def look_up(uid: int) -> None:
        if threading.current_thread().name == "logins":
            background.wait(30)
        if uid not in range(120_000, 120_100):
            raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", look_up)
    subordinate = tmp_path / "subuid"
    subordinate.write_text(f"{ALICE.uid}:100000:65536\n")
    logins = Logins(subordinate)
    async with house(tmp_path, login_of=logins.of, count_of_login=logins.count) as (users, fakes):
        for number in range(user_supervisor_limit.FOLDERS_OF_ONE_MAX):
            (tmp_path / "run" / "users" / Identity(120_000 + number, 1, ()).name).mkdir()
        for identity in (Identity(120_099, 1, ()), ALICE, Identity(100_000, 1, ())):
            await come(users, identity)
            assert fakes.starts[-1] == identity
    background.set()


async def _leave(users: UserSupervisors, fakes: Fakes, identity: Identity) -> None:
    fakes.receivers[identity.uid].say_idle()
    while messages.Leave() not in fakes.heard:
        await anyio.lowlevel.checkpoint()
    fakes.heard.clear()
    fakes.end(identity.uid)
    while identity.name in users._users:  # pyright: ignore[reportPrivateUsage]
        await anyio.lowlevel.checkpoint()
