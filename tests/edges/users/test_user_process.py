"""What does a started supervisor get of root's, and what not? As another user: tests/e2e/test_many_users.py."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
from pathlib import Path
from typing import cast

import anyio
import msgspec
import pytest

from supervisor.edges.machine.processes import process_table
from supervisor.edges.machine.processes.peer_identity import Identity
from supervisor.edges.users import user_process
from supervisor.edges.users.user_folders import Record, UserFolders
from supervisor.errors import ExhaustedError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts supervisors for somebody else")

ALICE = Identity(54321, 54321, (54330,))


def test_it_gets_an_environment_of_its_own_and_one_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in user_process.PROXIES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SECRET_OF_ROOT", "hunter2")
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    monkeypatch.setenv("PYTHONPATH", "/home")
    given: dict[str, object] = {}

    def popen(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        given.update(options, command=command)
        return real(["sleep", "0"])

    real = cast("type[subprocess.Popen[bytes]]", subprocess.Popen)
    monkeypatch.setattr(user_process.subprocess, "Popen", popen)
    folders = UserFolders(tmp_path / "run", tmp_path / "state")
    folders.make()
    started = user_process.start_supervisor(ALICE, (), folders.of(ALICE))
    assert started.process is not None
    started.process.wait()
    environment = cast("dict[str, str]", given["env"])
    assert environment == {"PATH": user_process.PATH, "LANG": "C.UTF-8", "HOME": "/"}
    assert len(cast("tuple[int, ...]", given["pass_fds"])) == 1
    assert given["cwd"] == "/"
    assert folders.of(ALICE).record() == started.record
    assert not user_process.is_running(started.record)


def test_its_traces_name_the_service_as_roots_do_but_have_no_password_of_roots(monkeypatch: pytest.MonkeyPatch):
    named = {"OTEL_SERVICE_NAME": "train", "OTEL_RESOURCE_ATTRIBUTES": "cluster=a"}
    for name, value in (*named.items(), ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=hunter2")):
        monkeypatch.setenv(name, value)
    environment = user_process.environment_of({})
    assert {name: value for name, value in environment.items() if name.startswith("OTEL")} == named


def test_it_gets_the_proxies_of_the_service_but_none_with_a_password(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Its user could read that."""
    for name in user_process.PROXIES:
        monkeypatch.delenv(name, raising=False)
    passed = {"HTTPS_PROXY": "http://proxy:3128", "no_proxy": "localhost,.example.org"}
    for name, value in (*passed.items(), ("HTTP_PROXY", "http://root:hunter2@proxy:3128")):
        monkeypatch.setenv(name, value)
    environment = user_process.environment_of({})
    assert {name: value for name, value in environment.items() if name in user_process.PROXIES} == passed
    assert "cannot pass HTTP_PROXY on to a user's supervisor: " in caplog.text
    assert "hunter2" not in caplog.text


def test_only_variables_that_were_found_are_kept_for_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The next start of a supervisor with jobs waits for no user database."""
    environments: list[dict[str, str]] = []

    def popen(command: list[str], *, env: dict[str, str], **_: object) -> subprocess.Popen[bytes]:
        environments.append(env)
        return real(["sleep", "0"])

    real = cast("type[subprocess.Popen[bytes]]", subprocess.Popen)
    monkeypatch.setattr(user_process.subprocess, "Popen", popen)
    folders = UserFolders(tmp_path / "run", tmp_path / "state")
    folders.make()
    alice = pwd.struct_passwd(("alice", "x", 54321, 54321, "", "/homes/alice", "/bin/sh"))
    known: list[dict[int, pwd.struct_passwd]] = [{}, {54321: alice}, {}]
    kept: list[dict[str, str]] = []
    for database in known:
        monkeypatch.setattr(pwd, "getpwuid", database.__getitem__)
        started = user_process.start_supervisor(ALICE, (), folders.of(ALICE))
        assert started.process is not None
        started.process.wait()
        kept.append(started.record.variables)
    assert [each["HOME"] for each in environments] == ["/", "/homes/alice", "/homes/alice"]
    found = {"HOME": "/homes/alice", "USER": "alice", "LOGNAME": "alice", "SHELL": "/bin/sh"}
    assert kept == [{}, found, found]


def test_it_does_not_get_roots_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A terminal is open for reading, too: the user would read what root types."""
    folders = UserFolders(tmp_path / "run", tmp_path / "state")
    folders.make()
    mine, theirs = os.openpty()
    kept = os.dup(1), os.dup(2)
    try:
        for number in (1, 2):
            os.dup2(theirs, number)
        given: dict[str, object] = {}

        def popen(command: list[str], **options: object) -> subprocess.Popen[bytes]:
            given.update(options)
            return real(["sleep", "0"])

        real = cast("type[subprocess.Popen[bytes]]", subprocess.Popen)
        monkeypatch.setattr(user_process.subprocess, "Popen", popen)
        started = user_process.start_supervisor(ALICE, (), folders.of(ALICE))
    finally:
        for number, before in zip((1, 2), kept, strict=True):
            os.dup2(before, number)
        for number in (*kept, mine, theirs):
            os.close(number)
    assert started.process is not None
    started.process.wait()
    assert (given["stdout"], given["stderr"]) == (subprocess.DEVNULL, subprocess.DEVNULL)


def test_one_that_cannot_be_started_is_an_error_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def popen(*_: object, **__: object) -> object:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(user_process.subprocess, "Popen", popen)
    folders = UserFolders(tmp_path / "run", tmp_path / "state")
    folders.make()
    with pytest.raises(ExhaustedError, match=r"cannot start the supervisor of user id 54321: .*ulimit -u"):
        user_process.start_supervisor(ALICE, (), folders.of(ALICE))
    assert list(folders.recorded()) == []


def test_a_supervisor_is_killed_with_all_that_it_has_started_in_whatever_session():
    tree = "setsid sh -c 'setsid sleep 600 & exec sleep 600' & exec sleep 600"
    process = subprocess.Popen(["sh", "-c", f"{tree}"], start_new_session=True)
    other = subprocess.Popen(["sleep", "600"])
    record = _record(process.pid)
    while len(below := process_table.descendants(process.pid)) < 2:
        assert process.poll() is None
    user_process.kill_all(record)
    process.wait()
    for entry in below:
        assert anyio.run(user_process.until_gone, Record(ALICE, (), entry.pid, entry.started_ticks), 20.0)
    assert other.poll() is None
    other.kill()
    other.wait()


def test_another_process_with_the_same_pid_is_left_alone():
    process = subprocess.Popen(["sleep", "600"])
    older = msgspec.structs.replace(_record(process.pid), started_ticks=1)
    user_process.kill(older)
    user_process.kill_all(older)
    assert anyio.run(user_process.until_gone, older, 20.0)
    assert not user_process.is_stopped(_record(process.pid))
    assert not anyio.run(user_process.until_gone, _record(process.pid), 0.05)
    os.kill(process.pid, signal.SIGSTOP)
    while not user_process.is_stopped(_record(process.pid)):
        pass
    user_process.kill(_record(process.pid))
    assert anyio.run(user_process.until_gone, _record(process.pid), 20.0)
    process.wait()


def _record(pid: int) -> Record:
    found = process_table.look_up(pid)
    assert found is not None
    return Record(ALICE, (), pid, found.started_ticks)
