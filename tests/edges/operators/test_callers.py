"""Which process made a call? Over gRPC: tests/e2e/test_many_users.py."""

from __future__ import annotations

import resource
import socket

import pytest

from supervisor.edges.operators.callers import CALL, Callers


def test_a_call_is_known_by_the_name_of_its_connection():
    callers = Callers()
    client, _ = pair = socket.socketpair()
    inner = socket.socket(socket.AF_UNIX)
    name = callers.enter(inner, client)
    token = CALL.set(name)
    try:
        limits = {each: (soft, hard) for each, soft, hard in callers.limits()}
        assert limits["NOFILE"] == resource.getrlimit(resource.RLIMIT_NOFILE)
        callers.leave(name)
        with pytest.raises(ProcessLookupError):
            callers.limits()
    finally:
        CALL.reset(token)
        for each in (*pair, inner):
            each.close()


def test_a_call_from_another_node_has_no_process_here():
    token = CALL.set("ipv4:10.0.0.1:4000")
    try:
        with pytest.raises(ProcessLookupError, match="does not call from this node"):
            Callers().limits()
    finally:
        CALL.reset(token)
