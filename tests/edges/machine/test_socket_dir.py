"""Socket directories: where they are looked for, which are refused, and how private supervisors find each other."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from supervisor.edges.machine import process_table, socket_dir
from supervisor.edges.machine.socket_dir import Candidate
from supervisor.errors import ConfigurationError

RUN = Path("/run/holdfast")


@pytest.mark.parametrize(
    ("explicit", "environment", "expected"),
    [
        ("/a", {"HOLDFAST_SOCKET_DIR": "/b", "XDG_RUNTIME_DIR": "/c"}, [Candidate(Path("/a"), True)]),
        (None, {"HOLDFAST_SOCKET_DIR": "/b", "XDG_RUNTIME_DIR": "/c"}, [Candidate(Path("/b"), True)]),
        (None, {"XDG_RUNTIME_DIR": "/c"}, [Candidate(Path("/c/holdfast"), False), Candidate(RUN, False)]),
        (None, {"XDG_RUNTIME_DIR": "relative"}, [Candidate(RUN, False)]),
        (None, {}, [Candidate(RUN, False)]),
    ],
)
def test_commands_look_in_this_order(explicit: str | None, environment: dict[str, str], expected: list[Candidate]):
    assert socket_dir.candidates(explicit, environment) == tuple(expected)


def test_the_daemon_serves_one_place(monkeypatch: pytest.MonkeyPatch):
    assert socket_dir.service_dir_for_daemon("/a", {"HOLDFAST_SOCKET_DIR": "/b"}) == Path("/a")
    assert socket_dir.service_dir_for_daemon(None, {"HOLDFAST_SOCKET_DIR": "/b"}) == Path("/b")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert socket_dir.service_dir_for_daemon(None, {"XDG_RUNTIME_DIR": "/c"}) == RUN
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert socket_dir.service_dir_for_daemon(None, {"XDG_RUNTIME_DIR": "/c"}) == Path("/c/holdfast")
    with pytest.raises(ConfigurationError, match="give --socket-dir"):
        socket_dir.service_dir_for_daemon(None, {})


def test_a_private_directory_is_fresh_closed_and_short_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first, second = socket_dir.private_dir(), socket_dir.private_dir()
    try:
        assert first != second
        assert first.stat().st_mode & 0o777 == 0o700
        deep = tmp_path / ("d" * 100)
        deep.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(deep))
        third = socket_dir.private_dir()
        assert third.parent == Path("/tmp")
        third.rmdir()
    finally:
        first.rmdir()
        second.rmdir()


def test_a_directory_is_made_closed_or_checked(tmp_path: Path):
    path = tmp_path / "made"
    socket_dir.make(path)
    socket_dir.make(path)
    assert path.stat().st_mode & 0o777 == 0o700
    path.chmod(0o750)
    with pytest.raises(ConfigurationError, match=r"mode is 0750.*chmod 0700"):
        socket_dir.make(path)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(ConfigurationError, match="symbolic link"):
        socket_dir.check(link)
    with pytest.raises(ConfigurationError, match="No such file"):
        socket_dir.make(tmp_path / "missing" / "below")
    plain = tmp_path / "plain"
    plain.touch()
    with pytest.raises(ConfigurationError, match="not a directory"):
        socket_dir.make(plain)
    with pytest.raises(ConfigurationError, match="107 are possible"):
        socket_dir.make(tmp_path / ("x" * 120))


def test_answers_tells_a_live_socket_from_a_stale_one(tmp_path: Path):
    path = tmp_path / "control.sock"
    assert not socket_dir.answers(path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        assert socket_dir.answers(path)
    assert not socket_dir.answers(path)
    error = socket_dir.nobody_answers(tmp_path)
    assert error.exit_code == 69
    assert str(tmp_path) in str(error)


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(socket_dir, "SHARED_TEMP", tmp_path / "tmp")
    (tmp_path / "tmp").mkdir()
    (tmp_path / "run").mkdir()
    return {"XDG_RUNTIME_DIR": str(tmp_path / "run")}


def test_live_private_supervisors_are_found_from_every_shell_and_dead_ones_forgotten(
    tmp_path: Path, environment: dict[str, str]
):
    other = subprocess.Popen(["sleep", "600"])
    try:
        mine = socket_dir.register(tmp_path / "a", os.getpid(), 20, environment=environment)
        socket_dir.register(tmp_path / "b", other.pid, 10, environment=environment)
        for shell in (environment, {}):
            found = socket_dir.registered(environment=shell)
            assert [(each.directory.name, each.pid) for each in found] == [("b", other.pid), ("a", os.getpid())]
    finally:
        other.kill()
        other.wait()
    assert [each.directory.name for each in socket_dir.registered(environment=environment)] == ["a"]
    mine.remove()
    mine.remove()
    assert socket_dir.registered(environment=environment) == ()
    assert list((tmp_path / "tmp").rglob("*.json")) == []


def test_a_pid_that_was_used_again_or_garbage_is_no_supervisor(tmp_path: Path, environment: dict[str, str]):
    (entry,) = socket_dir.register(tmp_path, os.getpid(), 1, environment={}).paths
    body = json.loads(entry.read_text())
    entry.with_name("1.json").write_text(json.dumps(body | {"started_ticks": body["started_ticks"] - 1}))
    entry.with_name("2.json").write_text(json.dumps(body | {"boot_id": "another boot"}))
    for name, text in (("3", ""), ("4", "[]"), ("5", "{}"), ("6", '{"dir": 1, "pid": "x"}')):
        entry.with_name(f"{name}.json").write_text(text)
    assert [each.pid for each in socket_dir.registered(environment={})] == [os.getpid()]
    assert not entry.with_name("1.json").exists()
    assert not entry.with_name("2.json").exists()


def test_one_of_another_pid_namespace_is_live_while_it_answers(tmp_path: Path, environment: dict[str, str]):
    (entry,) = socket_dir.register(tmp_path, 2**22 - 5, 1, environment={}).paths
    body = json.loads(entry.read_text())
    entry.write_text(json.dumps(body | {"pid_namespace": 1, "boot_id": process_table.boot_id()}))
    assert socket_dir.registered(environment={}) == ()
    assert entry.exists()  # not ours to judge, so not ours to remove
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "control.sock"))
        listener.listen()
        assert len(socket_dir.registered(environment={})) == 1


def test_a_registry_that_somebody_squats_on_is_not_believed(tmp_path: Path, environment: dict[str, str]):
    place = socket_dir.SHARED_TEMP / f"holdfast-{os.geteuid()}"
    place.symlink_to(tmp_path)
    with pytest.raises(ConfigurationError, match="symbolic link"):
        socket_dir.register(tmp_path, os.getpid(), 1, environment={})
    socket_dir.register(tmp_path, os.getpid(), 1, environment=environment)  # the other place does
    assert len(socket_dir.registered(environment=environment)) == 1
    assert socket_dir.registered(environment={}) == ()
