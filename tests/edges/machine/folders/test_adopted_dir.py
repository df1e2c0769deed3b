"""The folder of adopted ranks' supervisor: one holder at a time, and nobody touches another's files."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.edges.machine.folders import adopted_dir
from supervisor.edges.machine.folders.adopted_dir import AdoptedDir
from supervisor.edges.machine.processes import process_table
from supervisor.errors import InUseError
from tests.e2e.launch import wait_until

TIMEOUT_S = 60
# Serves the folder repeatedly; stops when one of its own files is missing.
RIVAL = """
import json, pathlib, sys
from supervisor.edges.machine.folders.adopted_dir import AdoptedDir
from supervisor.errors import InUseError
path, times = pathlib.Path(sys.argv[1]), 0
while times < int(sys.argv[2]):
    try:
        home = AdoptedDir(path, keeps_ranks=times % 2 == 0)
    except InUseError:
        continue
    (home.serving / "token").write_text("secret")
    home.tell({"token": str(home.serving / "token")})
    (path / "ranks").write_text("")
    assert pathlib.Path(json.loads((path / "endpoint.json").read_text())["token"]).read_text() == "secret"
    assert sorted(each.name for each in path.iterdir()) == sorted(
        ["endpoint.json", "ranks", "supervisor.lock", home.serving.name])
    home.close()
    times += 1
"""
HOLDER = """
import pathlib, sys
from supervisor.edges.machine.folders.adopted_dir import AdoptedDir
home = AdoptedDir(pathlib.Path(sys.argv[1]), keeps_ranks=False)
home.tell({})
print(flush=True); sys.stdin.read()
"""


@pytest.fixture
def own() -> Iterator[Path]:
    """Yields a user's own folder, with a path that leaves room for a socket's name."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def killed(path: Path, ranks: str) -> None:
    """Leaves the folder as a killed supervisor does."""
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdin=-1, stdout=-1)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"\n"
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    (path / "ranks").write_text(ranks)


def me() -> str:
    entry = process_table.look_up(os.getpid())
    assert entry is not None
    return f"{entry.pid} {entry.started_ticks}"


def test_one_that_comes_too_late_touches_nothing(own: Path):
    path = own / "inprocess-key"
    home = AdoptedDir(path, keeps_ranks=False)
    home.tell({"some": "variables"})
    (path / "ranks").touch()
    with pytest.raises(InUseError, match="serves it"):
        AdoptedDir(path, keeps_ranks=False)
    adopted_dir.sweep(own)
    assert {each.name for each in path.iterdir()} == {"supervisor.lock", "endpoint.json", "ranks", home.serving.name}
    assert json.loads((path / "endpoint.json").read_text()) == {"some": "variables"}
    home.close()
    home.close()
    assert list(own.iterdir()) == []


@pytest.mark.parametrize("keeps_ranks", [False, True])
def test_what_a_dead_one_left_goes_but_for_the_ranks_that_a_successor_must_miss(own: Path, keeps_ranks: bool):
    path = own / "inprocess-key"
    killed(path, f"1 {me()}\n")
    left = {each.name for each in path.iterdir()}
    home = AdoptedDir(path, keeps_ranks=keeps_ranks)
    expected = {"supervisor.lock", home.serving.name} | ({"ranks"} if keeps_ranks else set[str]())
    assert {each.name for each in path.iterdir()} == expected
    assert home.serving.name not in left
    home.close()
    assert path.exists() == keeps_ranks  # the next supervisor must notice the end of a live rank, too


def test_a_killed_one_is_remembered_while_a_rank_lives(own: Path):
    path = own / "inprocess-key"
    killed(path, f"0 {2**22 - 5} 7\n1 {me()}\n")
    adopted_dir.sweep(own)
    assert path.exists()
    pid, ticks = me().split()
    (path / "ranks").write_text(f"1 {pid} {int(ticks) - 1}\ngarbage\n2 x y\n")
    adopted_dir.sweep(own)
    assert list(own.iterdir()) == []


def test_what_ranks_or_removers_left_when_they_were_killed_goes_too(own: Path):
    (own / "inprocess-never-served").mkdir()
    turn = own / "inprocess-in-turn"
    turn.mkdir()
    descriptor = os.open(turn, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    (own / "inprocess-key.gone-01234567").mkdir()
    (own / "inprocess-key.gone-01234567" / "supervisor.lock").write_text("1\n")
    (own / "other").mkdir()
    starting = own / "inprocess-starting"
    starting.mkdir()
    (starting / "supervisor.lock").touch()  # opened, but not locked yet
    adopted_dir.sweep(own)
    assert {each.name for each in own.iterdir()} == {"other", "inprocess-starting", "inprocess-in-turn"}
    os.close(descriptor)
    adopted_dir.sweep(own)
    assert not turn.exists()


def test_one_whose_folder_was_deleted_leaves_the_next_one_alone(own: Path):
    path = own / "inprocess-key"
    first = AdoptedDir(path, keeps_ranks=False)
    path.rename(own / "deleted")
    second = AdoptedDir(path, keeps_ranks=False)
    second.tell({})
    first.close()
    assert {each.name for each in path.iterdir()} == {"supervisor.lock", "endpoint.json", second.serving.name}
    second.close()


def test_many_that_come_and_go_never_meet(own: Path):
    """Another process sweeps. Each finds only its own files there for as long as it serves."""
    command = [sys.executable, "-c", RIVAL, str(own / "inprocess-key"), "60"]
    rivals = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(3)]
    try:
        wait_until(
            lambda: adopted_dir.sweep(own) or all(rival.poll() is not None for rival in rivals),
            timeout_s=TIMEOUT_S, what="the end of all",
        )  # fmt: skip
        errors = [rival.communicate(timeout=TIMEOUT_S)[1].decode() for rival in rivals]
        assert errors == ["", "", ""]
    finally:
        for rival in rivals:
            rival.kill()
            rival.communicate()
    assert list(own.iterdir()) == []
