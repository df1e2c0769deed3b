"""Is a socket at its path with its mode before anybody can connect, and is nothing left where it can't be?"""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from supervisor.edges.machine.own_process import unix_listener
from supervisor.edges.machine.own_process.unix_listener import listening


@pytest.mark.parametrize("mode", [0o600, 0o666])
def test_it_has_its_mode_whatever_the_umask_and_takes_connections(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "socket"
    before = os.umask(0o077)
    try:
        with listening(path, mode=mode, backlog=4) as listener, socket.socket(socket.AF_UNIX) as client:
            assert stat.S_IMODE(path.stat().st_mode) == mode
            assert not listener.getblocking()
            client.connect(str(path))
            listener.accept()[0].close()
    finally:
        os.umask(before)


def test_its_kind_is_the_caller_s(tmp_path: Path) -> None:
    with listening(tmp_path / "socket", mode=0o600, backlog=1, kind=socket.SOCK_SEQPACKET) as listener:
        assert listener.type == socket.SOCK_SEQPACKET
        assert listener.getblocking()


def test_what_is_there_is_not_replaced_and_no_descriptor_is_left(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    path.write_text("somebody's")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Address already in use"):
        listening(path, mode=0o600, backlog=1)
    assert path.read_text() == "somebody's"
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_mode_that_cannot_be_set_leaves_nobody_to_connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: Path, _mode: int) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(unix_listener.Path, "chmod", refuse)
    with pytest.raises(PermissionError), listening(tmp_path / "socket", mode=0o600, backlog=1):
        raise AssertionError("it listens with another mode")
    with socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
        client.connect(str(tmp_path / "socket"))
