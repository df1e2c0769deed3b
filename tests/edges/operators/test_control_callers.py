"""Which process made a call? Over gRPC: tests/e2e/test_many_users.py."""

from __future__ import annotations

import os
import resource
import socket

import pytest

from supervisor.edges.operators.control_callers import CLIENT, is_root, limits_of_caller


def test_a_call_is_known_by_its_connection() -> None:
    client, other = socket.socketpair()
    token = CLIENT.set(client)
    try:
        limits = {each: (soft, hard) for each, soft, hard in limits_of_caller()}
        assert limits["NOFILE"] == resource.getrlimit(resource.RLIMIT_NOFILE)
        assert is_root() == (os.geteuid() == 0)
    finally:
        CLIENT.reset(token)
        client.close()
        other.close()


def test_a_call_from_another_node_has_no_process_here() -> None:
    with pytest.raises(ProcessLookupError, match="does not call from this node"):
        limits_of_caller()
    assert not is_root()
