"""Calls into foreign libraries: bounded, with their errors kept."""

from __future__ import annotations

import threading

import pytest

from worker_client.bounded_threads import BoundedThread, join_all


def test_an_error_is_kept_and_told(caplog: pytest.LogCaptureFixture):
    def fail() -> None:
        raise ValueError("no such group")

    thread = BoundedThread("abort", fail)
    thread.start()
    assert join_all([thread], 10)
    assert "cannot abort: no such group" in caplog.text


def test_without_a_thread_the_restart_goes_on(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    thread = BoundedThread("abort", lambda: None)
    thread.start()
    assert join_all([thread], 10)
    assert "cannot abort: can't start new thread" in caplog.text
