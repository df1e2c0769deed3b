"""A client shows its token only to root and to its own user, whatever that user's number is."""

from __future__ import annotations

import os
import socket
import struct

import pytest

from worker_client import server_identity

HIGH_UID = 3_000_000_000


class _SocketOf(socket.socket):
    """A socket that reports this peer."""

    credentials = b""

    def getsockopt(self, *_: object) -> bytes:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.credentials


def test_a_supervisor_of_this_user_is_known_by_any_number(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: HIGH_UID)
    with _SocketOf() as sock:
        sock.credentials = struct.pack("=III", 7, HIGH_UID, HIGH_UID)
        assert server_identity.check(sock) == 7
        sock.credentials = struct.pack("=III", 7, HIGH_UID + 1, HIGH_UID)
        with pytest.raises(PermissionError, match=f"uid {HIGH_UID + 1}"):
            server_identity.check(sock)
