"""A node's daemon serves at its socket until SIGTERM, and stays cordoned."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
from pathlib import Path

import anyio

from supervisor.config.daemon_settings import parse_daemon
from supervisor.edges.machine.folders import socket_dir
from supervisor.edges.machine.folders.cordon_file import CordonFile
from supervisor.wiring.daemon import serve_node

LIMIT_S = 60.0


class Said(logging.Handler):
    """What the daemon has logged."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.words: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.words.append(record.getMessage())

    def has(self, words: str) -> bool:
        return any(words in each for each in self.words)


async def test_a_daemon_serves_until_it_is_stopped_and_stays_cordoned(tmp_path: Path):
    said = Said()
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    await CordonFile(state).keep("new cable")
    with tempfile.TemporaryDirectory() as name, anyio.fail_after(LIMIT_S):
        folder = Path(name) / "s"
        settings = parse_daemon(["--socket-dir", str(folder), "--state-dir", str(state)], environ={})
        codes: list[int] = []

        async def serve() -> None:
            codes.append(await serve_node(settings, (said,)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            while not said.has(f"serves {folder}"):  # noqa: ASYNC110 - a log has no event
                await anyio.sleep(0.01)
            assert (folder / socket_dir.CONTROL_SOCKET).is_socket()
            os.kill(os.getpid(), signal.SIGTERM)
        assert codes == [0]
    assert said.has("this node is still cordoned (new cable)")
