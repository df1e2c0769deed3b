"""The kernel says whose process has the other end, and a socket that is in nobody's hands is nobody's word."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from supervisor.edges.machine.processes import tcp_peer_user
from supervisor.edges.machine.processes.tcp_peer_user import refusal_of_user, stranger_at

LIMIT_S = 30.0
OTHER = 54321
# Arguments: the user, the family, the port to connect to or 0 to listen. Each line of stdin is one step.
PEER = """
import os, socket, sys
sock = socket.socket(int(sys.argv[2]))
os.setuid(int(sys.argv[1]))
sock = socket.socket(int(sys.argv[2]))
host = "::1" if sock.family == socket.AF_INET6 else "127.0.0.1"
if port := int(sys.argv[3]):
    sock.connect((host, port))
else:
    sock.bind((host, 0))
    sock.listen()
print(sock.getsockname()[1], flush=True)
for step in sys.stdin:
    if step == "accept\\n":
        accepted, _ = sock.accept()
        accepted.send(b"x")
    else:
        sock.close()
    print("done", flush=True)
"""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")


class Peer:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout
        self.port = int(process.stdout.readline())

    def do(self, step: str) -> None:
        self._stdin.write(f"{step}\n")
        self._stdin.flush()
        assert self._stdout.readline() == "done\n"


@contextmanager
def peer(uid: int, family: socket.AddressFamily, port: int = 0) -> Generator[Peer]:
    command = [sys.executable, "-c", PEER, str(uid), str(int(family)), str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Peer(process)
        process.kill()


@contextmanager
def listening(family: socket.AddressFamily) -> Generator[socket.socket]:
    host = "::1" if family == socket.AF_INET6 else "127.0.0.1"
    with socket.create_server((host, 0), family=family) as listener:
        listener.settimeout(LIMIT_S)
        yield listener


FAMILIES = [socket.AF_INET, socket.AF_INET6]


@needs_root
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("uid", "whose"), [(0, ""), (OTHER, f"uid {OTHER}")])
def test_who_has_connected_is_known(family: socket.AddressFamily, uid: int, whose: str):
    with listening(family) as listener, peer(uid, family, listener.getsockname()[1]):
        accepted, _ = listener.accept()
        with accepted:
            assert stranger_at(accepted.getpeername(), accepted.getsockname()) == whose


@needs_root
@pytest.mark.parametrize("family", FAMILIES)
def test_who_has_accepted_is_known(family: socket.AddressFamily):
    with peer(OTHER, family) as other, socket.socket(family) as own:
        own.settimeout(LIMIT_S)
        own.connect(("::1" if family == socket.AF_INET6 else "127.0.0.1", other.port))
        other.do("accept")
        assert own.recv(1) == b"x"
        assert stranger_at(own.getpeername(), own.getsockname()) == f"uid {OTHER}"


@needs_root
def test_a_closed_socket_which_the_kernel_may_show_as_roots_is_not_believed():
    with listening(socket.AF_INET) as listener, peer(OTHER, socket.AF_INET, listener.getsockname()[1]) as other:
        accepted, _ = listener.accept()
        with accepted:
            other.do("close")
            with pytest.raises(ConnectionResetError):
                stranger_at(accepted.getpeername(), accepted.getsockname())


@needs_root
def test_root_is_trusted_by_users_and_they_are_not_by_root(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    with listening(socket.AF_INET) as listener:
        for uid, whose in ((0, ""), (OTHER, ""), (OTHER + 1, f"uid {OTHER + 1}")):
            with peer(uid, socket.AF_INET, listener.getsockname()[1]):
                accepted, _ = listener.accept()
                with accepted:
                    assert stranger_at(accepted.getpeername(), accepted.getsockname()) == whose


def connected() -> tuple[socket.socket, socket.socket]:
    with listening(socket.AF_INET) as listener:
        own = socket.create_connection(listener.getsockname(), timeout=LIMIT_S)
        return own, listener.accept()[0]


def test_users_of_other_user_namespaces_are_not_told_apart(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tcp_peer_user, "_uid_of_unmapped", os.geteuid)
    own, other = connected()
    with own, other:
        assert stranger_at(own.getpeername(), own.getsockname()) == "a user of another user namespace"


def nothing(local: tcp_peer_user.Address, remote: tcp_peer_user.Address) -> None:
    del local, remote


def test_where_the_kernel_says_nothing_everybody_is_a_stranger(monkeypatch: pytest.MonkeyPatch):
    own, other = connected()
    with own, other:
        ends = own.getpeername(), own.getsockname()
        assert stranger_at(*ends) == ""
        monkeypatch.setattr(tcp_peer_user, "_socket_at", nothing)
        assert stranger_at(*ends) == "a user whom the kernel does not name, since it has no tcp_diag"
        monkeypatch.undo()
        monkeypatch.setattr(tcp_peer_user, "_NETLINK_SOCK_DIAG", 31)
        assert stranger_at(*ends) == "a user whom the kernel does not name: protocol not supported"


def test_a_refusal_names_both_users_and_the_remedy():
    refusal = refusal_of_user("uid 7")
    assert f"here uid {os.geteuid()}" in refusal
    assert "belongs to uid 7; write --rdzv-conf token_file=F" in refusal
