"""A user's private supervisors: found from every shell, forgotten once dead, and never trusted from a stranger."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from supervisor.edges.machine.folders import default_dirs, private_registry
from supervisor.edges.machine.processes import process_table


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("HOME", str(tmp_path / "none"))
    monkeypatch.setattr(default_dirs, "SHARED_TEMPS", (tmp_path / "tmp", tmp_path / "var"))
    monkeypatch.setattr(default_dirs, "RUNTIME_DIRS", tmp_path / "user")
    (tmp_path / "tmp").mkdir()
    (tmp_path / "var").mkdir()
    (tmp_path / "run").mkdir()
    return {"XDG_RUNTIME_DIR": str(tmp_path / "run")}


def test_live_private_supervisors_are_found_from_every_shell_and_dead_ones_forgotten(
    tmp_path: Path, environment: dict[str, str]
):
    other = subprocess.Popen(["sleep", "600"])
    try:
        mine = private_registry.register(tmp_path / "a", os.getpid(), 20, environment=environment)
        private_registry.register(tmp_path / "b", other.pid, 10, environment=environment)
        for shell in (environment, {}):
            found = private_registry.registered(environment=shell)
            assert [(each.directory.name, each.pid) for each in found] == [("b", other.pid), ("a", os.getpid())]
    finally:
        other.kill()
        other.wait()
    assert [each.directory.name for each in private_registry.registered(environment=environment)] == ["a"]
    mine.remove()
    mine.remove()
    assert private_registry.registered(environment=environment) == ()
    assert list((tmp_path / "tmp").rglob("*.json")) == []


def test_a_pid_that_was_used_again_or_garbage_is_no_supervisor(tmp_path: Path, environment: dict[str, str]):
    (entry,) = private_registry.register(tmp_path, os.getpid(), 1, environment={}).paths
    body = json.loads(entry.read_text())
    entry.with_name("1.json").write_text(json.dumps(body | {"started_ticks": body["started_ticks"] - 1}))
    entry.with_name("2.json").write_text(json.dumps(body | {"boot_id": "another boot"}))
    for name, text in (("3", ""), ("4", "[]"), ("5", "{}"), ("6", '{"dir": 1, "pid": "x"}')):
        entry.with_name(f"{name}.json").write_text(text)
    assert [each.pid for each in private_registry.registered(environment={})] == [os.getpid()]
    assert not entry.with_name("1.json").exists()
    assert not entry.with_name("2.json").exists()


def test_one_of_another_pid_namespace_is_live_while_it_answers(tmp_path: Path, environment: dict[str, str]):
    (entry,) = private_registry.register(tmp_path, 2**22 - 5, 1, environment={}).paths
    body = json.loads(entry.read_text())
    entry.write_text(json.dumps(body | {"pid_namespace": 1, "boot_id": process_table.boot_id()}))
    assert private_registry.registered(environment={}) == ()
    assert entry.exists()  # not ours to judge, so not ours to remove
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "control.sock"))
        listener.listen()
        assert len(private_registry.registered(environment={})) == 1


def test_a_registry_that_somebody_squats_on_is_not_believed_and_another_takes_its_place(
    tmp_path: Path, environment: dict[str, str]
):
    first, second = default_dirs.own_dirs()
    first.symlink_to(tmp_path)
    registration = private_registry.register(tmp_path, os.getpid(), 1, environment={})
    assert [path.parent for path in registration.paths] == [second]
    assert registration.warning.startswith(f"cannot use {first}: it is a symbolic link; {second} is used in its place")
    assert len(private_registry.registered(environment={})) == 1
    second.chmod(0o777)
    lost = private_registry.register(tmp_path, os.getpid(), 1, environment={})
    assert lost.paths == ()
    assert f"--socket-dir {tmp_path}" in lost.warning
    assert private_registry.registered(environment={}) == ()
    elsewhere = private_registry.register(tmp_path, os.getpid(), 1, environment=environment)
    assert len(private_registry.registered(environment=environment)) == 1
    assert "is used in its place" in elsewhere.warning


def test_the_runtime_directory_of_the_system_needs_no_variable(tmp_path: Path, environment: dict[str, str]):
    (tmp_path / "user" / str(os.geteuid())).mkdir(parents=True)
    default_dirs.own_dirs()[0].touch()
    default_dirs.own_dirs()[1].touch()
    registration = private_registry.register(tmp_path, os.getpid(), 1, environment={})
    assert [path.parent.parent.parent for path in registration.paths] == [tmp_path / "user"]
    assert len(private_registry.registered(environment={})) == 1
