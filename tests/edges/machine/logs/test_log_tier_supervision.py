"""A process of the log server is replaced when it dies, reports why, and ends when it is finished."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import anyio
import pytest

from supervisor.edges.machine.logs import log_tier_supervision
from supervisor.edges.machine.logs.log_tier_supervision import FINISH, KILLED_S, LogTier

LIMIT_S = 40.0


def settings(tier: str = "leaf", **more: object) -> bytes:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return json.dumps(
        {
            "tier": tier,
            "job_id": "j",
            "name": tier,
            "host": "127.0.0.1",
            "port": port,
            "queue_chunks": 64,
            "quiet_s": 0.3,
        }
        | more
    ).encode()


async def test_a_process_that_dies_is_replaced_and_one_that_was_finished_is_not():
    lost: list[str] = []
    was_lost = anyio.Event()

    def note(why: str) -> None:
        lost.append(why)
        was_lost.set()

    tier = LogTier(settings(), ends_in_s=5.0, on_lost=note, on_away=lambda: None)
    ended: list[bool] = []

    async def run() -> None:
        ended.append(await tier.run())

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await tier.ready.wait()
            first = tier.pid
            os.kill(first, signal.SIGKILL)
            await was_lost.wait()
            await tier.ready.wait()
            assert tier.pid not in (0, first)
            assert lost == ["it was ended by SIGKILL"]
            tier.finish()
    assert ended == [True]


async def test_one_that_cannot_serve_says_why(tmp_path: Path):
    lost: list[str] = []
    again = anyio.Event()

    def note(why: str) -> None:
        lost.append(why)
        again.set()

    tier = LogTier(settings(token_file=str(tmp_path / "none")), ends_in_s=5.0, on_lost=note, on_away=lambda: None)
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tier.run)
            await again.wait()
            tasks.cancel_scope.cancel()
    assert lost[0].startswith("it ended with exit code 78: holdfast: cannot read the token file")


async def test_one_that_cannot_serve_says_so_once_and_does_not_hold_up_the_end(tmp_path: Path):
    lost: list[str] = []
    tier = LogTier(settings(token_file=str(tmp_path / "none")), ends_in_s=60.0, on_lost=lost.append, on_away=_nothing)
    ended: list[bool] = []

    async def run() -> None:
        ended.append(await tier.run())

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            pids: set[int] = set()
            while len(pids) < 3:
                pids.add(tier.pid)
                await anyio.sleep(0.01)
            tier.finish()
    assert ended == [False]
    assert len(lost) == 1


async def test_one_that_stands_still_at_the_end_is_killed_in_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log_tier_supervision, "END_MARGIN_S", 0.5)
    lost: list[str] = []
    tier = LogTier(settings(), ends_in_s=0.0, on_lost=lost.append, on_away=_nothing)
    ended: list[bool] = []

    async def run() -> None:
        ended.append(await tier.run())

    began_s = anyio.current_time()
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await tier.ready.wait()
            os.kill(tier.pid, signal.SIGSTOP)
            tier.finish()
            began_s = anyio.current_time()
        assert anyio.current_time() - began_s < 0.5 + KILLED_S
    assert ended == [False]
    assert lost == []


def test_the_last_word_is_one_that_a_tier_understands():
    assert json.loads(FINISH) == {"finish": True}


def _nothing() -> None:
    """The address of the next tier never changes here."""
