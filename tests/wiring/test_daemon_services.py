"""A node's daemon serves at its socket until SIGTERM, and stays cordoned."""

from __future__ import annotations

import errno
import logging
import os
import signal
import tempfile
from pathlib import Path

import anyio
import pytest

from supervisor.config.daemon_settings import OF_JOB_VARIABLE, parse_daemon
from supervisor.edges.machine.folders import default_dirs, private_registry, socket_dir, write_probe
from supervisor.edges.machine.folders.cordon_file import CordonFile
from supervisor.wiring.daemon_services import serve_node

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


async def test_a_daemon_whose_state_directory_cannot_be_written_knows_the_cordon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(default_dirs, "SHARED_TEMPS", (tmp_path / "tmp",))
    state = tmp_path / "state"
    for folder in (tmp_path / "tmp", state):
        folder.mkdir(mode=0o700)
    await CordonFile(state).keep("new cable")
    write = write_probe.write

    def full(folder: Path) -> None:
        if folder == state:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(folder)

    monkeypatch.setattr(write_probe, "write", full)
    said = Said()
    with tempfile.TemporaryDirectory() as name, anyio.fail_after(LIMIT_S):
        folder = Path(name) / "s"
        settings = parse_daemon(["--socket-dir", str(folder), "--state-dir", str(state)], environ={})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve_node, settings, (said,))
            while not said.has(f"serves {folder}"):  # noqa: ASYNC110 - a log has no event
                await anyio.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)
    assert said.has("cannot use state directory")
    assert said.has("this node is still cordoned (new cable)")


async def test_one_that_slurms_prolog_has_started_is_found_from_any_shell_of_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(default_dirs, "SHARED_TEMPS", (tmp_path,))
    monkeypatch.setattr(default_dirs, "RUNTIME_DIRS", tmp_path / "none")
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    state = tmp_path / "state"
    with tempfile.TemporaryDirectory() as name, anyio.fail_after(LIMIT_S):
        for environ in ({}, {OF_JOB_VARIABLE: "812"}):
            folder = Path(name) / f"s{len(environ)}"
            settings = parse_daemon(["--socket-dir", str(folder), "--state-dir", str(state)], environ=environ)
            said = Said()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(serve_node, settings, (said,))
                while not said.has(f"serves {folder}"):  # noqa: ASYNC110 - a log has no event
                    await anyio.sleep(0.01)
                found = [(each.directory, each.is_daemon) for each in private_registry.registered()]
                assert found == ([(folder, True)] if environ else [])
                os.kill(os.getpid(), signal.SIGTERM)
            assert private_registry.registered() == ()
