"""Socket directories: where they are looked for, what is in them, and which are refused."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from supervisor.edges.machine.folders import socket_dir
from supervisor.edges.machine.folders.socket_dir import Candidate
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
    with pytest.raises(ConfigurationError, match="the limit is 107"):
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


def test_what_a_container_needs_lies_in_a_folder_of_its_own():
    path = Path("/run/holdfast")
    assert socket_dir.worker_socket(path) == path / "worker" / "worker.sock"
    assert socket_dir.tokens_dir(path) == path / "worker" / "tokens"
    assert socket_dir.holder_of(socket_dir.worker_socket(path)) == path
    room = socket_dir.SOCKET_PATH_BYTES_MAX - len("/worker/worker.sock")
    assert socket_dir.longest_socket_path_fits(Path("/" + "x" * (room - 1)))
    assert not socket_dir.longest_socket_path_fits(Path("/" + "x" * room))
