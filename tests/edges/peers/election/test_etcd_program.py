"""Is the program etcd found, refused if it is of no use, and kept running, whatever its disk does?"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from supervisor.edges.peers.election import etcd_program
from supervisor.edges.peers.election.etcd_member_connection import Endpoint
from supervisor.edges.peers.election.etcd_program import EtcdProgram
from supervisor.edges.peers.election.member_tls import MemberFiles
from supervisor.errors import ConfigurationError
from supervisor.ports.timed_waits import pause

LIMIT_S = 90.0
REMEDY = "install etcd 3.4 or newer"


def _install(folder: Path, script: str) -> Path:
    path = folder / "etcd"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def _program(folder: Path, path: str = "etcd") -> EtcdProgram:
    return EtcdProgram(path, folder, Endpoint("127.0.0.1", 1), MemberFiles("certificate", "key", "authority"))


@asynccontextmanager
async def _running(program: EtcdProgram) -> AsyncGenerator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(program.run, [program.peer_url])
        yield
        await program.end()


async def _until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(LIMIT_S):
        while not condition():
            await pause(0.02, why="nothing tells what a program has done")


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo 'etcd Version: 3.3.25'", "etcd is version 3.3, which knows no learners; " + REMEDY),
        ("echo 'etcd Version: 2.10.1'", "etcd is version 2.10, which"),
        ("exit 127", "etcd does not start: .*; " + REMEDY),
    ],
)
def test_a_program_of_no_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, says: str):
    _install(tmp_path, script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(ConfigurationError, match=says):
        etcd_program.find()


@pytest.mark.parametrize("version", ["3.4.23", "3.10.0", "4.0.0"])
def test_a_program_that_is_new_enough_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str):
    path = _install(tmp_path, f"echo 'etcd Version: {version}'")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert etcd_program.find() == str(path)


@pytest.mark.parametrize(
    ("log", "says"),
    [
        ('{"msg":"one"}\n{"msg":"cannot listen","error":"in use"}\n', "cannot listen: in use"),
        ('{"msg":"one"}\npanic: no space left\n\ngoroutine 1 [running]:\n\tmain.go:28 +0x17\n', "panic: no space left"),
        ("flag provided but not defined: -x\nSee 'etcd --help'.\n", "See 'etcd --help'."),
        ("", ""),
    ],
)
async def test_the_last_words_are_those_that_say_why_it_ended(tmp_path: Path, log: str, says: str):
    (tmp_path / "log").write_text(log)
    assert await _program(tmp_path).last_words() == says


def test_without_a_program_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="there is no program etcd on this node; " + REMEDY):
        etcd_program.find()


async def test_a_log_on_a_disk_that_hangs_holds_up_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(etcd_program, "DISK_TIMEOUT_S", 0.1)
    log = tmp_path / "log"
    os.mkfifo(log)  # Opening it for reading waits for a writer.
    program = _program(tmp_path)
    for _ in range(2):
        assert await program.last_words() == ""
    os.close(os.open(log, os.O_RDWR | os.O_NONBLOCK))


async def test_a_log_that_can_not_be_trimmed_in_time_holds_up_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(etcd_program, "DISK_TIMEOUT_S", 0.1)
    monkeypatch.setattr(etcd_program, "LOG_KEPT_BYTES_MAX", 3)
    answers, threads = threading.Event(), set[int]()

    def truncate(_path: Path, _size: int) -> None:
        threads.add(threading.get_ident())
        answers.wait(LIMIT_S)

    (tmp_path / "log").write_text("long")
    monkeypatch.setattr(os, "truncate", truncate)
    program = _program(tmp_path)
    for _ in range(3):
        await program.trim_log()
    answers.set()
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_a_program_whose_log_can_not_be_opened_is_broken_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(etcd_program, "FAILS_MAX", 2)
    (tmp_path / "log").mkdir()
    program = _program(tmp_path, "/bin/true")
    async with _running(program):
        await _until(lambda: program.is_broken)
        await _until(lambda: program.pid is None)
        assert await program.last_words() == f"cannot open {tmp_path}/log: Is a directory"


async def test_a_program_that_can_not_be_started_for_long_is_broken_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(etcd_program, "AGAIN_S", 0.05)
    monkeypatch.setattr(etcd_program, "STEADY_S", 0.1)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    program = _program(tmp_path)
    async with _running(program):
        await _until(lambda: program.is_broken)
        assert "its process can't be started: [Errno 2]" in await program.last_words()


async def test_a_program_that_runs_at_last_is_no_longer_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in (("AGAIN_S", 0.01), ("STEADY_S", 3.0), ("FAILS_MAX", 2)):
        monkeypatch.setattr(etcd_program, name, value)
    may_run = tmp_path / "may run"
    program = _program(tmp_path, str(_install(tmp_path, f"[ -e '{may_run}' ] || exit 1; exec sleep 600")))
    async with _running(program):
        await _until(lambda: program.is_broken)
        may_run.touch()
        await _until(lambda: program.pid is not None and not program.is_broken)


async def test_a_shortage_of_processes_for_a_moment_breaks_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(etcd_program, "AGAIN_S", 0.01)
    monkeypatch.setattr(etcd_program, "STEADY_S", LIMIT_S)
    starts: list[str] = []

    def start(*_: object, **__: object) -> None:
        starts.append("refused")
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", start)
    program = _program(tmp_path)
    async with _running(program):
        await _until(lambda: len(starts) > 2 * etcd_program.FAILS_MAX)
        assert not program.is_broken


async def test_the_program_gets_what_python_needs_of_the_environment_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("LD_LIBRARY_PATH", "ETCD_NAME", "HTTPS_PROXY", "SECRET_TOKEN"):
        monkeypatch.setenv(name, "/of/the/supervisor")
    log = tmp_path / "log"
    async with _running(_program(tmp_path, str(_install(tmp_path, "env; echo all")))):
        await _until(lambda: log.exists() and "\nall\n" in log.read_text())
    names = {line.partition("=")[0] for line in log.read_text().partition("\nall\n")[0].splitlines()}
    assert "LD_LIBRARY_PATH=/of/the/supervisor" in log.read_text()
    set_by_others = {"PWD", "_", "SHLVL", "OLDPWD", "LC_CTYPE"}  # the shell, and Python
    assert names - set_by_others == {"PATH", "LD_LIBRARY_PATH", *etcd_program.ANY_ADDRESS}
