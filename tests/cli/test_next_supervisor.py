"""A command waits for a supervisor only where spawners of the last one live."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from holdfast_wire.private_supervisor import JOB_ID_VARIABLE, SPAWNER_VARIABLE

from supervisor.cli.next_supervisor import may_have_left, wait_for_next
from supervisor.edges.machine.processes import process_table
from supervisor.edges.operators.control_client import ControlClient
from supervisor.edges.workers.spawner import spawner_discovery


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The sockets of supervisors for which somebody has waited; each one comes."""
    sockets: list[Path] = []

    def come(self: ControlClient, timeout_s: float) -> bool:
        assert 0 < timeout_s <= 10
        sockets.append(self.socket_path)
        return True

    monkeypatch.setattr(ControlClient, "wait_until_ready", come)
    return sockets


def test_nobody_waits_where_no_spawner_lives(tmp_path: Path, asked: list[Path]) -> None:
    said: list[str] = []
    folder, control = tmp_path / "spawners", tmp_path / "control.sock"
    assert not wait_for_next(folder, control, said.append)
    place, listener = spawner_discovery.create_files(folder)
    listener.close()
    assert not wait_for_next(folder, control, said.append)
    place.record_path.write_text('{"job_id":"j","boot":"another","pid_namespace":1,"pid":1,"started_ticks":1}')
    assert not wait_for_next(folder, control, said.append)
    assert (asked, said) == ([], [])


def test_the_jobs_of_a_living_spawner_are_worth_a_wait(tmp_path: Path, asked: list[Path]) -> None:
    said: list[str] = []
    folder, control = tmp_path / "spawners", tmp_path / "control.sock"
    place, listener = spawner_discovery.create_files(folder)
    listener.close()
    place.note("j", os.getpid())
    assert wait_for_next(folder, control, said.append)
    assert asked == [control]
    (sentence,) = said
    assert "its jobs run on; waiting up to 10 s" in sentence


def test_a_damaged_record_is_no_reason_to_wait_and_no_fault(tmp_path: Path, asked: list[Path]) -> None:
    folder, control = tmp_path / "spawners", tmp_path / "control.sock"
    place, listener = spawner_discovery.create_files(folder)
    listener.close()
    os.mkfifo(place.record_path)
    assert not wait_for_next(folder, control, list[str]().append)
    assert asked == []


@pytest.mark.parametrize("place", ["", "users/7.someone/own"])
def test_a_lost_supervisor_may_have_left_a_job_whose_spawner_is_not_certainly_gone(tmp_path: Path, place: str) -> None:
    folder = tmp_path / place / "spawners"
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    assert not may_have_left(tmp_path, "j")
    files, listener = spawner_discovery.create_files(folder)
    listener.close()
    assert not may_have_left(tmp_path, "j")
    files.note("j", os.getpid())
    assert may_have_left(tmp_path, "j")
    assert not may_have_left(tmp_path, "another")
    record = '{"job_id":"j","boot":"%s","pid_namespace":%d,"pid":%d,"started_ticks":1}'
    boot, own = process_table.boot_id(), os.stat("/proc/self/ns/pid").st_ino
    files.record_path.write_text(record % (boot, own, os.getpid()))
    assert not may_have_left(tmp_path, "j"), "another process has its pid"
    files.record_path.write_text(record % (boot, own + 1, os.getpid()))
    assert may_have_left(tmp_path, "j"), "nobody here sees whether it lives"
    files.record_path.write_text(record % ("another", own + 1, os.getpid()))
    assert not may_have_left(tmp_path, "j"), "the node has booted since"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder to another user")
def test_root_follows_no_link_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may lead to a disk that does not answer."""
    own, dead = tmp_path / "users/54321.someone/own", tmp_path / "dead"
    own.mkdir(mode=0o700, parents=True)
    dead.mkdir()
    (own / "spawners").symlink_to(dead)
    os.chown(own, 54321, 54321)
    looked: list[Path] = []

    def watched(real: Callable[[Path], object]) -> Callable[[Path], object]:
        def look(path: Path) -> object:
            looked.extend(each for each in (Path(path),) if own in each.parents)
            return real(path)

        return look

    monkeypatch.setattr(os.path, "isdir", watched(os.path.isdir))
    monkeypatch.setattr(os, "listdir", watched(os.listdir))
    assert not may_have_left(tmp_path, "j")
    assert looked == []
    assert spawner_discovery.find_files(own / "spawners") == []
    assert looked == []


def test_the_folder_of_this_user_that_a_container_does_not_see_into_may_hold_a_spawner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sees root's folder below the mount."""
    (tmp_path / "users/54321.someone/own").mkdir(mode=0o700, parents=True)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    assert may_have_left(tmp_path, "j")
    monkeypatch.setattr(os, "geteuid", lambda: 54322)
    assert not may_have_left(tmp_path, "j")


def test_a_spawner_with_a_damaged_record_is_found_without_a_connection_that_it_takes_for_a_supervisor(
    tmp_path: Path,
) -> None:
    files, listener = spawner_discovery.create_files(tmp_path / "spawners")
    files.record_path.write_text("{")
    marks = {JOB_ID_VARIABLE: "j", SPAWNER_VARIABLE: files.name}
    with listener, subprocess.Popen(["sleep", "60"], env={**os.environ, **marks}) as spawner:
        listener.listen()
        try:
            assert may_have_left(tmp_path, "j")
            assert not may_have_left(tmp_path, "another")
            with pytest.raises(BlockingIOError):
                listener.accept()
        finally:
            spawner.kill()
    assert not may_have_left(tmp_path, "j")
