"""The peer's process and user come from the kernel, whatever their numbers are."""

from __future__ import annotations

import os
import socket
import struct

import pytest
from holdfast_wire import socket_user

from supervisor.edges.machine.processes.peer_credentials import Peer

HIGH_UID = 3_000_000_000  # a directory service may give such numbers


def test_the_peer_is_the_kernels_word():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert Peer.of(ours) == Peer(os.getpid(), os.geteuid(), foreign=False)


class _SocketOf(socket.socket):
    """A socket that reports this peer."""

    credentials = b""

    def getsockopt(self, *_: object) -> bytes:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.credentials


def test_a_user_id_above_2_to_the_31_is_itself(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: HIGH_UID)
    with _SocketOf() as sock:
        sock.credentials = struct.pack("=III", os.getpid(), HIGH_UID, HIGH_UID)
        peer = Peer.of(sock)
    assert peer == Peer(os.getpid(), HIGH_UID, foreign=False)
    assert peer.is_this_user
    assert peer.may_be_this_user


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_process_of_a_high_user_id_is_seen_as_such():
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind("")  # the kernel chooses an abstract name, which no folder's mode protects
        listener.listen()
        os.seteuid(HIGH_UID)
        try:
            client.connect(listener.getsockname())
        finally:
            os.seteuid(0)
        accepted, _ = listener.accept()
        with accepted:
            assert Peer.of(accepted) == Peer(os.getpid(), HIGH_UID, foreign=False)


def test_our_own_user_and_root_are_trusted():
    assert Peer(1, os.geteuid(), foreign=False).is_this_user
    assert Peer(1, 0, foreign=False).is_this_user
    assert not Peer(1, os.geteuid() + 1000, foreign=False).is_this_user
    assert not Peer(0, os.geteuid() + 1000, foreign=True).is_this_user


def test_ids_that_cannot_be_judged_do_not_speak_against_a_peer(monkeypatch: pytest.MonkeyPatch):
    assert Peer(1, os.geteuid(), foreign=False).may_be_this_user
    assert Peer(0, 12345, foreign=True).may_be_this_user
    assert not Peer(1, os.geteuid() + 1000, foreign=False).may_be_this_user
    unmapped = Peer(1, 65534, foreign=False)
    monkeypatch.setattr(socket_user, "_in_user_namespace", lambda: True)
    assert unmapped.may_be_this_user
    monkeypatch.setattr(socket_user, "_in_user_namespace", lambda: False)
    assert not unmapped.may_be_this_user  # in the first namespace, it is the user nobody
