"""A process of the log server is replaced when it dies, reports why, and ends when it is finished."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import anyio

from supervisor.edges.machine.logs.log_tier import FINISH, LogTier

LIMIT_S = 40.0


def settings(tier: str = "leaf", **more: object) -> bytes:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return json.dumps(
        {"tier": tier, "job_id": "j", "name": tier, "host": "127.0.0.1", "port": port, "queue_chunks": 64} | more
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


def test_the_last_word_is_one_that_a_tier_understands():
    assert json.loads(FINISH) == {"finish": True}
