"""Which sockets did systemd keep, according to the variables that it sets? Under a real systemd: tests/deploy."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.edges.machine.own_process import fd_store

# The descriptors have fixed numbers, so this needs a separate process.
TAKE = """
import os, sys
from supervisor.edges.machine.own_process import fd_store
os.environ["LISTEN_PID"] = str(os.getpid())
kept = fd_store.take_kept()
print(sorted(kept.items()), os.get_inheritable(3), [name for name in os.environ if name.startswith("LISTEN")])
print(fd_store.take_kept())
"""


def _said(**environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"import os; os.dup2(1, 3); os.dup2(1, 4)\n{TAKE}"],
        env={**os.environ, **environment}, capture_output=True, text=True, check=True, close_fds=True,
    )  # fmt: skip
    return done.stdout


def test_kept_descriptors_come_with_their_names_once():
    assert _said(LISTEN_FDS="2", LISTEN_FDNAMES="control:other") == "[('control', 3), ('other', 4)] False []\n{}\n"


@pytest.mark.parametrize(
    "variables",
    [{}, {"LISTEN_PID": "1", "LISTEN_FDS": "1"}, {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "x"}],
)
def test_variables_that_are_not_for_us_mean_nothing(variables: dict[str, str]):
    assert fd_store.take_kept(dict(variables)) == {}


@pytest.fixture
def listener(tmp_path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(tmp_path / "control.sock"))
    made.listen()
    return made


def test_a_kept_listener_is_used_if_it_is_at_its_path(listener: socket.socket, tmp_path: Path):
    kept = {"control": listener.detach()}
    found = fd_store.kept_listener(kept, "control", tmp_path / "control.sock")
    assert found is not None
    with found, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "control.sock"))
        found.accept()[0].close()
    assert kept == {}


def test_one_whose_file_is_gone_is_closed(listener: socket.socket, tmp_path: Path):
    (tmp_path / "control.sock").unlink()
    descriptor = listener.detach()
    assert fd_store.kept_listener({"control": descriptor}, "control", tmp_path / "control.sock") is None
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(descriptor)


def test_what_is_no_listener_is_closed(tmp_path: Path):
    one, other = socket.socketpair()
    with other:
        assert fd_store.kept_listener({"control": one.detach()}, "control", tmp_path / "control.sock") is None
    assert fd_store.kept_listener({}, "control", tmp_path / "control.sock") is None
