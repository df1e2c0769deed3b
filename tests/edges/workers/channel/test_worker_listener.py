"""The socket stays reachable if deleted, replaced, stale, or without descriptors; and one supervisor serves it."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import sys
from pathlib import Path
from typing import NoReturn

import anyio.lowlevel
import pytest

from supervisor.edges.machine.clock import Clock
from supervisor.edges.workers.channel.worker_server import WorkerServer
from supervisor.errors import ConfigurationError, InUseError
from tests.edges.workers.worker_side import JOB_ID, Kept, open_cycle, serve, until


def _inode(path: Path) -> int:
    return path.lstat().st_ino


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


@pytest.mark.parametrize("what", ["socket", "moved", "directory", "all", "all moved", "link"])
async def test_a_deleted_socket_comes_back_and_connected_ranks_do_not_notice(tmp_path: Path, what: str):
    async with serve(tmp_path) as served:
        rank = served.connect()
        await rank.join(0)
        before = _inode(served.path)
        match what:
            case "socket":
                served.path.unlink()
            case "moved":
                served.path.rename(served.path.with_name("elsewhere"))
            case "directory":
                shutil.rmtree(served.path.parent)
            case "all":
                shutil.rmtree(served.path.parents[1])
            case "all moved":
                served.path.parents[1].rename(tmp_path / "elsewhere")
            case _:
                served.link.unlink()
                await until(lambda: _answers(served.link))
        await until(lambda: _answers(served.path))
        assert os.readlink(served.link) == "worker/worker.sock"
        assert what in ("directory", "all", "all moved", "link") or _inode(served.path) != before
        assert served.path.stat().st_mode & 0o777 == 0o600
        assert served.path.parent.stat().st_mode & 0o777 == 0o700
        again = served.connect()
        await again.join(1)
        assert served.server.read_progress(JOB_ID, 0, 0) is not None
        # It is watched again: delete it once more.
        served.path.unlink()
        await until(lambda: _answers(served.path))


async def test_a_second_supervisor_is_refused_and_told_who_serves(tmp_path: Path):
    async with serve(tmp_path) as served:
        second = WorkerServer(socket_path=served.path, events=Kept(), clock=Clock(), on_sections=lambda _: None)
        with pytest.raises(InUseError, match=f"pid {os.getpid()} serves it"):
            await second.run()
        assert _answers(served.path)
    assert not served.path.exists()


async def test_what_a_dead_supervisor_left_is_replaced(tmp_path: Path):
    directory = tmp_path / "sock"
    script = (
        "import sys, os, pathlib; from supervisor.edges.machine.folders import socket_claim\n"
        "path = pathlib.Path(sys.argv[1]); claim = socket_claim.SocketDirClaim(path.parents[1])\n"
        "listener = socket_claim.bind_in_own_dir(path); os.kill(os.getpid(), 9)"
    )
    await anyio.run_process([sys.executable, "-c", script, str(directory / "worker" / "worker.sock")], check=False)
    assert (directory / "worker" / "worker.sock").exists()
    async with serve(tmp_path) as served:
        await served.connect().join(0)


@pytest.mark.parametrize("what", ["symlink", "mode", "file", "owner"])
async def test_an_unsafe_directory_is_refused_with_the_reason(tmp_path: Path, what: str):
    directory = tmp_path / "sock"
    directory.mkdir(mode=0o700)
    match what:
        case "symlink":
            directory.rmdir()
            (tmp_path / "real").mkdir(mode=0o700)
            directory.symlink_to(tmp_path / "real")
            why = "symbolic link"
        case "mode":
            directory.chmod(0o755)
            why = "mode is 0755"
        case "file":
            (directory / "worker").mkdir(mode=0o700)
            (directory / "worker" / "worker.sock").write_text("mine")
            why = "not a socket of ours"
        case _:
            if os.geteuid() != 0:
                pytest.skip("only root can give a directory away")
            os.chown(directory, 65534, 65534)
            why = "belongs to user id 65534"
    server = WorkerServer(
        socket_path=directory / "worker" / "worker.sock", events=Kept(), clock=Clock(), on_sections=lambda _: None
    )
    with pytest.raises(ConfigurationError, match=why):
        await server.run()


async def test_out_of_descriptors_accepting_pauses_and_resumes(tmp_path: Path):
    async with serve(tmp_path) as served:
        rank = served.connect()
        await rank.join(0)
        waiting = served.connect()  # made now, since it needs a descriptor, too
        later = served.connect()
        third = served.connect()
        await until(lambda: len(served.server._connections) == 4)  # pyright: ignore[reportPrivateUsage]
        clients = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        held = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 1, hard))
            fill: list[int] = []
            while True:
                try:
                    fill.append(os.open(os.devnull, os.O_RDONLY))
                except OSError:
                    break
            for client in clients:
                client.connect(str(served.path))
            listener = served.server._listener  # pyright: ignore[reportPrivateUsage]
            await until(lambda: listener.pauses)
            # Existing ranks continue without a descriptor: through frames, since no page can be made.
            assert not (await waiting.join(1)).page_shared
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for descriptor in fill + held:
                os.close(descriptor)
            fill = held = []
            await until(lambda: len(served.server._connections) == 7)  # pyright: ignore[reportPrivateUsage]
            assert (await later.join(2)).page_shared
            assert (await third.join(3)).page_shared
        finally:
            for descriptor in held:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for client in clients:
                client.close()


async def test_a_lost_socket_is_found_at_the_next_cycle_where_nothing_can_be_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def no_watch(*paths: Path, changes: int) -> NoReturn:
        raise OSError(24, "no inotify instances left")

    monkeypatch.setattr("supervisor.edges.workers.channel.worker_listener.DirectoryWatch", no_watch)
    async with serve(tmp_path) as served:
        await anyio.lowlevel.checkpoint()
        served.path.unlink()
        open_cycle(served, cycle=1)
        await until(lambda: _answers(served.path))
