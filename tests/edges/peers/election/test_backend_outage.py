"""An outage of the backend is told when it begins, once a minute, and when it is over; not at each attempt."""

from __future__ import annotations

import logging

import anyio
import pytest

from supervisor.edges.peers.election import backend_outage
from supervisor.edges.peers.election.backend_outage import BackendOutage


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> list[float]:
    at_s = [0.0]
    monkeypatch.setattr(anyio, "current_time", lambda: at_s[0])
    caplog.set_level(logging.INFO, logger="holdfast.cluster")
    return at_s


def test_it_is_told_as_it_begins_each_minute_and_as_it_ends(now: list[float], caplog: pytest.LogCaptureFixture) -> None:
    outage = BackendOutage("j")
    outage.worked("watch")
    for tenth in range(1250):
        now[0] = 100.0 + tenth / 10
        outage.failed("watch" if tenth % 2 == 0 else "keep it", "connection refused")
        outage.worked("ask")
    assert outage.clause() == "the rendezvous backend has not answered for 125 s, and a restart waits for it"
    outage.worked("watch")
    assert not outage.clause()
    outage.worked("watch")
    assert caplog.messages == [
        "job j cannot watch: connection refused; ranks that run go on, a start or restart waits",
        "job j cannot watch: connection refused; this lasts for 60 s",
        "job j cannot watch: connection refused; this lasts for 120 s",
        "job j can watch again, after 124.9 s",
    ]


def test_another_outage_is_told_at_once(now: list[float], caplog: pytest.LogCaptureFixture) -> None:
    outage = BackendOutage("j")
    outage.failed("watch", "reset")
    outage.worked("watch")
    now[0] = 1.0
    outage.failed("keep it", TimeoutError())
    now[0] = 2.0 + backend_outage.TOLD_EVERY_S  # it no longer leads, so it never keeps it again
    outage.failed("watch", "reset")
    assert [message for message in caplog.messages if "cannot" in message] == [
        "job j cannot watch: reset; ranks that run go on, a start or restart waits",
        "job j cannot keep it: no answer in time; ranks that run go on, a start or restart waits",
        "job j cannot watch: reset; ranks that run go on, a start or restart waits",
    ]
