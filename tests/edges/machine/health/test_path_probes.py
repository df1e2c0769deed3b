"""Looks at paths in separate processes, one of them at a file system that never answers."""

from __future__ import annotations

import errno
import os
import signal
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from supervisor.core.storage_verdict import Answered, Failed, Kind, Silent, Unasked
from supervisor.edges.machine.health import path_prober
from supervisor.edges.machine.health.path_probes import PathProbes
from supervisor.edges.machine.processes import process_table
from supervisor.ports import timed_waits
from tests.soak.places import Unanswering, served_alone

SOON_S = 0.3
LONG_S = 30.0

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def probes() -> Generator[PathProbes]:
    made = PathProbes()
    yield made
    made.close()


@pytest.fixture
def silent(tmp_path: Path) -> Generator[Unanswering]:
    with served_alone(tmp_path / "silent") as files:
        if files is None:
            pytest.skip("needs root, mount namespaces and /dev/fuse")
        yield files


def prober_pid() -> int:
    (found,) = [
        entry.pid
        for entry in process_table.all_processes()
        if entry.parent_pid == os.getpid() and _is_prober(entry.pid)
    ]
    return found


def _is_prober(pid: int) -> bool:
    return b"path_prober.py" in Path(f"/proc/{pid}/cmdline").read_bytes()


def forks() -> list[process_table.ProcessEntry]:
    prober = prober_pid()
    return [entry for entry in process_table.all_processes() if entry.parent_pid == prober]


async def test_each_path_is_answered_for_itself(probes: PathProbes, tmp_path: Path) -> None:
    (tmp_path / "word").write_text("healthy\n")
    assert await probes.look(Kind.ANY, str(tmp_path), timeout_s=LONG_S) == Answered()
    assert await probes.look(Kind.TEXT, str(tmp_path / "word"), timeout_s=LONG_S) == Answered("healthy\n")
    missing = await probes.look(Kind.ANY, str(tmp_path / "a b"), timeout_s=LONG_S)
    assert missing == Failed(errno.ENOENT, "No such file or directory")
    strange = tmp_path / os.fsdecode(b"\xff \n")
    strange.touch()
    assert await probes.look(Kind.ANY, str(strange), timeout_s=LONG_S) == Answered()


AS_ANOTHER_USER = """
import __future__, os, select, signal, stat  # later, this user may not read them
source = open({prober!r}).read()
os.setgroups([]); os.setgid(65534); os.setuid(65534)
exec(compile(source, "path_prober.py", "exec"))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can look as another user")
async def test_a_folder_of_another_user_is_told_from_one_that_refuses_even_to_be_looked_at(
    probes: PathProbes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "path_prober.py"
    program.write_text(AS_ANOTHER_USER.format(prober=path_prober.__file__))
    monkeypatch.setattr(path_prober, "__file__", str(program))
    with tempfile.TemporaryDirectory(dir="/tmp") as private:
        os.mkdir(f"{private}/inside")
        found = [await probes.look(Kind.FOLDER, path, timeout_s=LONG_S) for path in (private, f"{private}/inside")]
    assert found == [
        Failed(errno.EACCES, "Permission denied", is_there=True),
        Failed(errno.EACCES, "Permission denied"),
    ]


async def test_a_look_that_hangs_holds_up_no_other_and_is_killed(
    probes: PathProbes, silent: Unanswering, tmp_path: Path
) -> None:
    assert await probes.look(Kind.ANY, str(silent.folder), timeout_s=LONG_S) == Answered()
    silent.fail()
    async with anyio.create_task_group() as looks:

        async def hang() -> None:
            found = await probes.look(Kind.ANY, str(silent.folder), timeout_s=SOON_S)
            assert isinstance(found, Silent)
            assert found.since_s >= SOON_S - 1e-6  # a difference of two floats

        looks.start_soon(hang)
        assert await probes.look(Kind.ANY, str(tmp_path), timeout_s=LONG_S) == Answered()
    with anyio.fail_after(LONG_S):
        while forks():  # noqa: ASYNC110 - the end of another process's child is no event here
            await anyio.sleep(0.01)
    silent.mend()
    assert await probes.look(Kind.ANY, str(silent.folder), timeout_s=LONG_S) == Answered()


@pytest.mark.alone
async def test_of_a_path_that_cannot_even_be_killed_there_is_one_look_and_nobody_waits(
    silent: Unanswering, tmp_path: Path
) -> None:
    probes = PathProbes()
    silent.swallow()
    began_s = anyio.current_time()
    for _ in range(5):
        found = await probes.look(Kind.ANY, str(silent.folder), timeout_s=SOON_S)
        assert isinstance(found, Silent)
    assert anyio.current_time() - began_s < 5 * SOON_S, "only the first one waits"
    assert await probes.look(Kind.ANY, str(tmp_path), timeout_s=LONG_S) == Answered()
    with anyio.fail_after(LONG_S):
        while [entry.state for entry in forks()] != ["D"]:  # noqa: ASYNC110 - as above
            await anyio.sleep(0.01)
    began_s = anyio.current_time()
    probes.close()
    assert anyio.current_time() - began_s < 5.0, "the end waits for no look"


async def test_the_loss_of_the_prober_is_no_verdict_and_another_one_is_started(
    probes: PathProbes, tmp_path: Path
) -> None:
    assert await probes.look(Kind.ANY, str(tmp_path), timeout_s=LONG_S) == Answered()
    first = prober_pid()
    os.kill(first, signal.SIGSTOP)
    async with anyio.create_task_group() as looks:

        async def ask() -> None:
            lost = await probes.look(Kind.ANY, str(tmp_path), timeout_s=LONG_S)
            assert lost == Unasked("the process that looks at storage has ended")

        looks.start_soon(ask)
        with anyio.fail_after(LONG_S):
            while not probes.under_way:  # noqa: ASYNC110 - neither is that
                await anyio.sleep(0.01)
        os.kill(first, signal.SIGKILL)
    assert await probes.look(Kind.ANY, str(tmp_path), timeout_s=LONG_S) == Answered()
    assert prober_pid() != first


async def stopped_prober(probes: PathProbes, path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Stops the prober, and has a suspension of this process noticed within 0.1 s; returns the prober's pid."""
    monkeypatch.setattr(timed_waits, "TURN_EVERY_S", 0.1)
    monkeypatch.setattr(timed_waits, "PAUSED_S", 0.1)
    assert await probes.look(Kind.ANY, str(path), timeout_s=LONG_S) == Answered()
    prober = prober_pid()
    os.kill(prober, signal.SIGSTOP)
    return prober


@pytest.mark.alone
@pytest.mark.parametrize(
    ("stopped_s", "more_s"),
    [pytest.param(1.5, 0.0, id="beyond the deadline"), pytest.param(0.9, 0.3, id="for most of the time")],
)
async def test_time_in_which_this_process_was_stopped_does_not_count(
    probes: PathProbes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped_s: float, more_s: float
) -> None:
    prober = await stopped_prober(probes, tmp_path, monkeypatch)

    async def stop() -> None:
        while not probes.under_way:
            await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()  # It waits.
        time.sleep(stopped_s)  # noqa: ASYNC251 - as SIGSTOP does
        await anyio.sleep(more_s)
        os.kill(prober, signal.SIGCONT)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop)
        assert await probes.look(Kind.ANY, str(tmp_path), timeout_s=1.0) == Answered()


@pytest.mark.alone
async def test_time_in_which_this_process_was_stopped_does_not_count_for_a_later_caller_either(
    probes: PathProbes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prober = await stopped_prober(probes, tmp_path, monkeypatch)

    async def ask() -> None:
        assert await probes.look(Kind.ANY, str(tmp_path), timeout_s=1.0) == Answered()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        while not probes.under_way:
            await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()  # It waits.
        time.sleep(1.5)  # noqa: ASYNC251 - as SIGSTOP does
        tasks.start_soon(ask)
        await anyio.sleep(0.3)
        tasks.start_soon(ask)
        await anyio.sleep(0.1)
        os.kill(prober, signal.SIGCONT)
