"""systemd gets the messages of its protocol, on paths and abstract addresses; without it nothing happens."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.own_process.sd_notify import Notifier


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.setblocking(False)
        if request.param == "path":
            address = name = str(tmp_path / "notify")
        else:
            name = f"@holdfast-test-{os.getpid()}"
            address = "\0" + name[1:]
        receiver.bind(address)
        yield receiver, name


Manager = tuple[socket.socket, str]


def test_words_arrive_as_systemd_reads_them(manager: Manager):
    receiver, name = manager
    notifier = Notifier({"NOTIFY_SOCKET": name})
    notifier.ready("serving\n2 jobs")
    assert receiver.recv(4096) == b"READY=1\nSTATUS=serving 2 jobs"
    notifier.status("busy")
    assert receiver.recv(4096) == b"STATUS=busy"
    notifier.reloading(Clock())
    word, _, monotonic = receiver.recv(4096).partition(b"\n")
    assert word == b"RELOADING=1"
    assert int(monotonic.removeprefix(b"MONOTONIC_USEC=")) > 0
    notifier.stopping()
    assert receiver.recv(4096) == b"STOPPING=1"
    notifier.close()


def drained(receiver: socket.socket) -> list[bytes]:
    received: list[bytes] = []
    with suppress(BlockingIOError):
        while True:
            received.append(receiver.recv(4096))
    return received


async def test_the_watchdog_is_fed_at_half_its_time_while_the_loop_turns(manager: Manager):
    receiver, name = manager
    notifier = Notifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "40000", "WATCHDOG_PID": str(os.getpid())})
    assert notifier.watchdog_interval_s == 0.02
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(notifier.keep_watchdog)
        for turn in range(4):
            with anyio.fail_after(10):
                await anyio.wait_readable(receiver)
            assert receiver.recv(4096) == b"WATCHDOG=1"
            if turn == 2:
                drained(receiver)
                time.sleep(0.2)  # noqa: ASYNC251 - blocks the loop, not other threads
                assert not drained(receiver)
        tasks.cancel_scope.cancel()
    notifier.close()


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NOTIFY_SOCKET": ""},
        {"NOTIFY_SOCKET": "/nobody/here"},
        {"NOTIFY_SOCKET": "@nobody", "WATCHDOG_USEC": "nonsense"},
        {"NOTIFY_SOCKET": "@nobody", "WATCHDOG_USEC": "10", "WATCHDOG_PID": "1"},
    ],
)
async def test_where_nobody_listens_nothing_happens(environment: dict[str, str]):
    notifier = Notifier(environment)
    notifier.ready("x")
    notifier.alive()
    notifier.stopping()
    with anyio.fail_after(10):
        await notifier.keep_watchdog()
    notifier.close()
