"""What does the unit of a user's supervisor execute? Under a real systemd: tests/deploy/test_users_unit.py."""

from __future__ import annotations

import errno
import json
import os
import pwd
import socket
from pathlib import Path

import pytest

from supervisor.config.user_service import UserShares
from supervisor.edges.machine.processes.peer_identity import ROOT
from supervisor.edges.users import unit_start, user_folders
from supervisor.edges.users.user_folders import Record, UserFolders
from supervisor.edges.users.user_units import UserUnits, instance_of
from supervisor.errors import ConfigurationError, ExhaustedError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes folders for somebody else")


class Executed(Exception):
    pass


def test_it_opens_the_socket_says_which_process_it_is_and_keeps_what_systemd_gave_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def execve(program: str, command: list[str], environment: dict[str, str]) -> None:
        raise Executed(program, command, environment)

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    monkeypatch.setenv("SECRET_OF_ROOT", "hunter2")
    monkeypatch.chdir(tmp_path)
    folders = UserFolders(tmp_path / "run", tmp_path / "state")
    folders.make()
    folder = folders.of(ROOT)
    folder.make(ROOT)
    monkeypatch.setattr(pwd, "getpwuid", dict[int, object]().__getitem__)  # jobs wait for no user database
    variables = {"HOME": "/homes/r", "USER": "r"}
    folder.note(Record(ROOT, (("NOFILE", 1, 2),), arguments=("--state-dir", "/s"), variables=variables))
    with pytest.raises(Executed) as caught:
        unit_start.execute(tmp_path / "run", instance_of(ROOT))
    _, command, environment = caught.value.args
    wanted = json.loads(command[command.index("-S") + 2])
    assert wanted == {"uid": 0, "gid": 0, "groups": [], "limits": [["NOFILE", 1, 2]]}
    assert command[-2:] == ["--state-dir", "/s"]
    assert environment["NOTIFY_SOCKET"] == "/run/systemd/notify"
    assert "SECRET_OF_ROOT" not in environment
    assert (environment["HOME"], environment["USER"]) == ("/homes/r", "r")
    handover_socket = int(command[command.index("--door-fd") + 1])
    assert os.get_inheritable(handover_socket)
    with socket.socket(fileno=handover_socket), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as root:
        root.connect(str(folder.handover_socket))
    record = folder.record()
    assert record is not None
    assert record.pid == os.getpid()


def test_a_unit_looks_its_user_up_and_the_next_one_waits_for_no_user_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    environments: list[dict[str, str]] = []

    def execve(program: str, command: list[str], environment: dict[str, str]) -> None:
        environments.append(environment)
        raise Executed

    def start() -> Record:
        """Starts a supervisor as systemd does."""
        UserUnits("holdfast-user@", UserShares()).start(ROOT, (), folder, [])
        with pytest.raises(Executed):
            unit_start.execute(tmp_path / "run", instance_of(ROOT))
        record = folder.record()
        assert record is not None
        return record

    def no_answer(uid: int) -> None:
        pytest.fail("it waits for the user database")

    (tmp_path / "systemctl").write_text("#!/bin/sh\n")
    (tmp_path / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.chdir(tmp_path)
    folders = UserFolders(tmp_path / "run", tmp_path / "state")
    folders.make()
    folder, answer = folders.of(ROOT), pwd.getpwuid
    monkeypatch.setattr(pwd, "getpwuid", dict[int, object]().__getitem__)
    assert (start().variables, environments[-1]["HOME"]) == ({}, "/")
    monkeypatch.setattr(pwd, "getpwuid", answer)
    found = start().variables
    assert found["USER"] == answer(0).pw_name
    monkeypatch.setattr(pwd, "getpwuid", no_answer)
    assert start().variables == found
    assert environments[-1]["HOME"] == answer(0).pw_dir


def test_a_full_disk_is_no_wrong_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """After that, systemd would not start the unit again."""

    def listening(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folders = UserFolders(tmp_path / "run", tmp_path / "state")
    folders.make()
    folder = folders.of(ROOT)
    folder.make(ROOT)
    folder.note(Record(ROOT, ()))
    monkeypatch.setattr(f"{user_folders.__name__}.listening", listening)
    with pytest.raises(ExhaustedError, match=r"cannot prepare the folder .*: No space left on device; free space"):
        unit_start.execute(tmp_path / "run", instance_of(ROOT))


def test_nobody_starts_it_by_hand(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="cannot start a supervisor for 54321-abc: there is no "):
        unit_start.execute(tmp_path, "54321-abc")
