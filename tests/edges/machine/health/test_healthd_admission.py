"""Is a user's check answered in time and correctly while another user floods the service? With real users."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from supervisor.edges.machine.health import healthd_admission
from supervisor.edges.machine.health.healthd_admission import HealthdAdmission
from supervisor.edges.machine.processes.socket_stream import SocketStream
from tests.e2e.launch import wait_until

ALICE, BOB = 54321, 54322
SUBORDINATE = range(100_000, 165_536)  # of Alice
CONNECTIONS = 3_000
FLOOD = Path(__file__).with_name("health_flood.py")
SCRIPT = """#!/bin/sh
case "$1" in slow*) sleep 60 ;; esac
echo "asked with: $*" >&2
printf '{"fail_count": 0}'
"""
ASK = """
import asyncio, json, os, sys, time
import anyio, anyio.to_thread, nvhcd.nvhcd_pb2, supervisor.edges.rpc.grpc_client
from supervisor.edges.machine.health import nvhcd_client
from tests.e2e.launch import wait_until
uid = int(sys.argv[2])
async def main():
    await nvhcd_client.NvhcdClient("/nonexistent").ask()  # All that it needs is loaded: the user may not read it.
    os.setgroups([]); os.setgid(uid); os.setuid(uid)
    for number in range(int(sys.argv[3])):
        nvhcd_client.ARGUMENTS = ("of", str(uid), str(number))
        begun_s = time.monotonic()
        answer = await nvhcd_client.NvhcdClient(sys.argv[1]).ask()
        print(json.dumps([time.monotonic() - begun_s, getattr(answer, "error", repr(answer))]), flush=True)
asyncio.run(main())
"""


@pytest.fixture
def socket_path() -> Generator[str]:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    (folder / "check.sh").write_text(SCRIPT)
    (folder / "check.sh").chmod(0o755)
    config = folder / "nvhcd.yaml"
    config.write_text(f"socket_path: {folder}/nvhcd.sock\nhealthcheck_path: {folder}/check.sh\ntimeout: 100\n")
    command = [sys.executable, "-m", "supervisor", "healthd", "-config", str(config)]
    said = folder / "errors"
    with said.open("wb") as errors, subprocess.Popen(command, stderr=errors) as service:
        try:
            wait_until(lambda: "serving" in said.read_text(), timeout_s=20.0, what="healthd")
            yield f"{folder}/nvhcd.sock"
            service.terminate()
            assert service.wait(20) == 0
        finally:
            service.kill()
            shutil.rmtree(folder)


def flooding(socket_path: str, uid: int, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, str(FLOOD), socket_path, str(uid), str(count)]
    flood = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert flood.stdout is not None
    assert flood.stdout.readline() == "flooding\n"
    return flood


def answers(socket_path: str, uid: int, count: int) -> list[tuple[float, str]]:
    command = [sys.executable, "-c", ASK, socket_path, str(uid), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


async def settled() -> None:
    """Lets the gate see all that the kernel has: each turn of the loop asks it."""
    for _ in range(30):
        await anyio.lowlevel.checkpoint()


class Gate:
    """A gate in this process, before a server that reads; `as_user` is whom the kernel names."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = str(folder / "gate.sock")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self.listener.bind(self.path)
        self.listener.listen(1_000)
        self.gate = HealthdAdmission(self.listener, lambda uid: ALICE if uid in SUBORDINATE else uid)
        self.as_user = ALICE
        monkeypatch.setattr(healthd_admission, "uid_of", self._uid_of)
        self.accepted: list[socket.socket] = []
        self.clients: list[socket.socket] = []

    def _uid_of(self, client: socket.socket) -> int:
        del client
        return self.as_user

    async def serve(self, client: socket.socket) -> None:
        self.accepted.append(client)
        while await SocketStream(client).receive():
            pass

    async def connect(self, uid: int, data: bytes = b"x") -> socket.socket:
        self.as_user = uid
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self.clients.append(client)
        client.connect(self.path)
        with suppress(BrokenPipeError):
            client.send(data)
        await settled()
        return client


@asynccontextmanager
async def gate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Gate]:
    made = Gate(folder, monkeypatch)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.gate.run, made.serve)
            yield made
            tasks.cancel_scope.cancel()
    for each in (made.listener, *made.clients):
        each.close()


def is_open(client: socket.socket) -> bool:
    try:
        return client.recv(100) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


async def test_places_are_counted_by_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(healthd_admission, "CONNECTIONS_OF_ONE_MAX", 2)
    async with gate(tmp_path, monkeypatch) as game:
        of_alice = [await game.connect(ALICE) for _ in range(3)]
        of_bob = await game.connect(BOB)
        assert [is_open(each) for each in (*of_alice, of_bob)] == [True, True, False, True]
        of_alice[0].close()
        await settled()
        assert is_open(await game.connect(ALICE))


async def test_subordinate_user_ids_count_for_their_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(healthd_admission, "CONNECTIONS_OF_ONE_MAX", 2)
    async with gate(tmp_path, monkeypatch) as game:
        of_alice = [await game.connect(uid) for uid in (100_000, 123_456, 165_535, ALICE)]
        assert [is_open(each) for each in of_alice] == [True, True, False, False]
        with game.gate.calling(game.accepted[-1]) as uid:
            assert uid == ALICE


async def test_the_user_with_most_connections_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(healthd_admission, "CONNECTIONS_MAX", 3)
    async with gate(tmp_path, monkeypatch) as game:
        calling = await game.connect(ALICE)
        with game.gate.calling(game.accepted[-1]) as uid:
            assert uid == ALICE
            idle = [await game.connect(ALICE) for _ in range(2)]
            of_bob = await game.connect(BOB)
            of_root = await game.connect(0)
            assert [is_open(each) for each in (calling, *idle, of_bob, of_root)] == [True, False, False, True, True]
            assert not is_open(await game.connect(BOB))  # he has as many as everyone


async def test_a_connection_without_a_call_loses_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(healthd_admission, "IDLE_S", 0.5)
    async with gate(tmp_path, monkeypatch) as game:
        calling = await game.connect(ALICE)
        peer = game.accepted[-1]
        with game.gate.calling(peer):
            silent, half = await game.connect(ALICE, b""), await game.connect(ALICE, b"half a request")
            for each in (silent, half):
                await anyio.wait_readable(each)
                assert not is_open(each)
            assert is_open(calling)
        await anyio.wait_readable(calling)
        assert not is_open(calling)
        with pytest.raises(LookupError), game.gate.calling(peer):
            pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")
@pytest.mark.alone
def test_a_user_with_3000_connections_delays_nobody_elses_check(socket_path: str) -> None:
    flood = flooding(socket_path, ALICE, CONNECTIONS)
    try:
        for uid in (BOB, 0):
            found = answers(socket_path, uid, 8)
            print("waited", [f"{waited_s:.2f} s" for waited_s, _ in found])
            assert [said for _, said in found] == [f"asked with: of {uid} {number}\n" for number in range(8)]
            assert sorted(waited_s for waited_s, _ in found)[6] < 1.0
            assert max(waited_s for waited_s, _ in found) < 3.0
    finally:
        flood.kill()
        flood.communicate()
